// Package nftables enforces a policy.Plan with the nftables table kubeveil_policy.
//
//	postrouting 95   the node's own processes: accept, but for answers to ended flows
//	                 known connections: accept; answers to ended flows: drop
//	                 from a pod's link ─► chain egress      to a pod's link ─► chain ingress
//	input 101        known connections: accept
//	                 from a pod's link ─► chain egress
//	chain egress     saddr in the members of a group ─► goto the group's chain, or return
//	                 nothing matched: policy_pending, drop
//
// It promises:
//   - A pod that is in no group's set of members is mute. That holds regardless of what is deleted:
//     a group, a member, a set that another program flushed.
//   - A second table, kubeveil_stamp, drops a pod's packet that the first did not judge.
//     So a program that deletes or flushes the first table opens no connection.
//   - The kernel enforces the old plan or the new one: one transaction switches. New sets with many
//     elements are made before it (slice.go).
//   - Applying a plan that is in force writes nothing, also after a restart of the daemon.
//   - A transaction that the kernel refuses changes nothing, and Apply returns its error.
//
// Chains and sets have the names of the plan, which are hashes of their content: a chain with the
// right name and the right texts is never written again. The CNI plugin writes members too
// (package pod), so Refresh reads them before a plan that changes members is applied.
//
// Package chains makes the chains, package sets the sets to which their rules refer. Package message
// reads and writes the table. This package compares the kernel with the plan, and decides in which
// transactions the difference is written.
//
// The table has no anonymous sets and no verdict maps. With them, a change of one pod, or any nft
// command on the node, would take time in proportion to the table.
//
// Drops are logged to nflog with a limit per pod, and counted without one.
//
// Start reading at PolicyTable.Apply, then diff.go.
package nftables
