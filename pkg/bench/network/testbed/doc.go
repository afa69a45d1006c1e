// Package testbed prepares the two nodes between which a benchmark of a cluster measures, with the
// three sides: Kubeveil, the kernel's WireGuard configured by hand, and the network in clear.
//
//	New: namespace, pods, sessions ─► Serve: services ─► Wire: interfaces of two sides ─► Close
//
// It promises:
//   - Close removes what it made on nodes and in the API. If it cannot, the end of the privileged
//     pods removes the interfaces.
//   - A cluster is not changed otherwise.
//
// It refuses a cluster with fewer than two nodes that are Ready and schedulable, and nodes without
// IPv4. It does not judge which path the traffic took: Snapshot has the counters for that.
//
// Start reading at New, then Bed.Wire.
package testbed
