// Package wgkey holds the node's WireGuard keys: Curve25519 pairs (RFC 7748),
// the file in which the private one lives, and the promise that it has no text
// form. A Private prints as "redacted" under every format verb, in every log
// and in JSON, also from deep inside another value; only Private.Bytes, which
// hands it to a device, and the key file see it.
//
// The file is created on the node with mode 0600. It must be on tmpfs or ramfs, unless the caller
// allows a disk. A file that is not exactly as this package writes it is refused and never
// overwritten: if the key of a node changes silently, its peers no longer accept the node. Pages of
// a tmpfs may be swapped out, so a node must have no swap, or encrypted swap. ramfs is never
// swapped.
//
// It is a leaf: no kernel, no Kubernetes, no clock. Start reading at
// private.go, then file.go.
package wgkey
