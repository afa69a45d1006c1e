// Package wgkey holds the node's WireGuard keys: Curve25519 pairs (RFC 7748),
// the file in which the private one lives, and the promise that it has no text
// form. A Private prints as "redacted" under every format verb, in every log
// and in JSON, also from deep inside another value; only Private.Bytes, which
// hands it to a device, and the key file see it.
//
// The file is made on the node, on tmpfs unless a disk is asked for by name,
// with mode 0600. One that is not exactly as this package would have written it
// is refused and never overwritten: a node whose key changes silently is
// a node that its peers no longer know. Pages of a tmpfs may be swapped
// out, so a node must have no swap, or swap that is encrypted; ramfs never is.
//
// It is a leaf: no kernel, no Kubernetes, no clock. Start reading at
// private.go, then file.go.
package wgkey
