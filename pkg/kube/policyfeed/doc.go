// Package policyfeed passes Pods, Namespaces and policies of the API server to a sink: the keeper
// of policies. It creates Events at policies that deny more than is written.
//
//	Pods, NetworkPolicies ─► parse ─► allowance of the namespace ─► sink
//	Namespaces            ─► parse ──────────────────────────────►  │
//	ClusterNetworkPolicies, where installed ─► parse ────────────►  │
//	a kind that cannot be read ─► SetFailing ─────────────────────► │
//
// Promises:
//   - A policy that cannot be parsed completely is passed on as Invalid. It denies traffic in its
//     directions, and never allows more than its text.
//   - While a kind cannot be read, SetFailing has reported that to the sink. The sink has all
//     objects of the kind before SetFailing reports the end.
//   - A namespace with too many objects does not affect other namespaces: its own largest objects
//     are shrunk, and its own Events wait.
//
// Start reading at Run, then parse.go. denial.go is independent of them.
package policyfeed
