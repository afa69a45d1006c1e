// Package scale measures how long a node takes from a list of services with up to a million
// endpoints to a written table, beside the loop that others publish: a small message and an update
// of a map for each endpoint.
//
//	feed, another process ─┬─ TLS, HTTP/2, protobuf ─► client, planner, writer ─► BPF maps
//	(e2e/scale/apifeed)    └─ TLS, HTTP/2, messages ─► loop ────────────────────► BPF map
//
//	writer ─► kube-apiserver, etcd ─┬─ list or watch ─► client, planner, writer ─► BPF maps
//	          (a lab without nodes) └─ list ─► dropped
//
// # What it promises
//
// Everything that is sent was encoded before. Both sides run in processes of their own, which begin
// with each measurement, so that their CPU time and peak memory belong to one list. A side that
// did not write each endpoint is an error, not a figure. The maps of a measurement end with its
// process.
//
// Start reading at Run in suite.go. ours.go and package loop are the sides with a feed. change.go
// and storm.go change what it has. server.go and write.go are the parts with a real API server
// (plane.go), and child.go runs all processes.
package scale
