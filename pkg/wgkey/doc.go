// Package wgkey holds the node's WireGuard keys: Curve25519 pairs (RFC 7748),
// the file in which the private one lives on tmpfs, and the promise that it has
// no text form. A Private prints as "redacted" under every format verb, in
// every log and in JSON; only the two calls that hand it to a device see it.
//
// It is a leaf: no kernel, no Kubernetes, no clock.
package wgkey
