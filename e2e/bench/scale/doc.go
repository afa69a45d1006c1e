// Package scale measures how long a node takes from a list of services with up to a million
// endpoints to a written table, beside the loop that others publish: a small message and an update
// of a map for each endpoint.
//
//	feed, another process ─┬─ TLS, HTTP/2, protobuf ─► client, planner, writer ─► BPF maps
//	(e2e/scale/apifeed)    └─ TLS, HTTP/2, messages ─► loop ────────────────────► BPF map
//
// # What it promises
//
// Everything that is sent was encoded before. Both sides run in processes of their own, which begin
// with each measurement, so that their CPU time and peak memory belong to one list. A side that
// did not write each endpoint is an error, not a figure. The maps of a measurement end with its
// process.
//
// Start reading at Run in suite.go. ours.go and loop.go are the two sides, and child.go starts
// them.
package scale
