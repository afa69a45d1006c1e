// Package prober probes one API server: pings over a held HTTP/2 connection, and requests for
// /readyz beside it, without credentials.
//
// It promises:
//   - A server that ends is found at once, and one that falls silent within a second, in a cluster
//     of up to 1,000 nodes. More nodes probe less often (Pace).
//   - A certificate is verified and its names are read, but a wrong certificate does not end a
//     probe. Status shows it as a problem.
//   - Cookies has the sockets of probes, so that a search for clients' connections leaves them out.
//
// It does not judge a server. Package apiserver judges the observations. Start reading at Run.
package prober
