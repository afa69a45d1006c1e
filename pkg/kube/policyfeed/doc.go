// Package policyfeed passes Pods, Namespaces and policies of the API server to a sink: the keeper
// of policies. It creates Events at policies that deny more than is written.
//
//	Pods, NetworkPolicies ─► parse ─► allowance of the namespace ─► sink
//	Namespaces            ─► parse ──────────────────────────────►  │
//	ClusterNetworkPolicies, where installed ─► parse ────────────►  │
//	a kind that cannot be read ─► SetFailing ─────────────────────► │
//
// Promises:
//   - A policy that cannot be read whole never allows more than its text, and never disappears: it
//     denies traffic in its directions.
//   - While a kind cannot be read, the sink knows; it has all objects of the kind before that ends.
//   - One namespace costs no other anything: its largest objects are shrunk, and its Events wait.
//
// Start reading at Run, then parse.go; denial.go stands alone.
package policyfeed
