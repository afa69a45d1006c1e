// Package tlspair has pairs of TCP proxies with mutual TLS 1.3, as service meshes and links between
// clusters use them. Benchmarks measure them beside tunnels.
//
//	client ── proxy ══ TLS ══ proxy ── server
//
// A proxy is haproxy or a program in Go. Each connection of a client costs the pair a TLS
// connection of its own. Sessions are resumed.
//
// Start reading at Prepare.
package tlspair
