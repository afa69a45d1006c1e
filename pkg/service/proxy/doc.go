// Package proxy keeps the node's table of services in force: it takes services and endpoints as a
// feed tells of them, has them planned (pkg/service) and written (Table), and sees that the API
// server's own service, entry 0, has servers that answer.
//
//	feed ─► queue ─► Planner.Plan ─► Table.Apply
//	probes of the API servers ─► entry 0 ──┘
//
// Promises:
//   - One goroutine owns the Planner and the Table. What comes while it writes is planned together
//     next; a change that comes alone waits for nothing.
//   - After a start nothing that an earlier process left is taken away before everything has been
//     listed; entry 0 is followed from the beginning, with the API servers that were known before.
//   - What cannot be written is tried again, from what is then in the maps, at growing intervals.
//     Until then the table stays as it was, entry 0 excepted, which is written by itself.
//   - An API server that died is watched until connections to it are closed, also when it has left
//     the list by then, or before a restart.
//   - The table stays in force when Run ends.
//
// It refuses to know Kubernetes, BPF and where sockets are: its seams are Table, the feed (whose
// sink a Proxy is) and Options.
//
// Start with Proxy.Run in proxy.go, then apiserver.go. health.go is what balancers ask.
package proxy
