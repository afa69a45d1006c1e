// Package prober probes one API server: pings over a held HTTP/2 connection, and requests for
// /readyz beside it, without credentials.
//
// It promises:
//   - A server that ends is found at once, and one that falls silent within a second, in a cluster
//     of up to 1,000 nodes. More nodes probe less often (Pace).
//   - A certificate is verified and its names are read, but a wrong one ends no probe: that is a
//     problem to be shown.
//   - The sockets of probes are known (Cookies), so that no other search takes them for a client's.
//
// It decides nothing about a server: package apiserver judges the observations. Start reading at
// Run.
package prober
