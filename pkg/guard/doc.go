// Package guard drops packets that must not be on the network in clear. It attaches BPF programs at
// tc to every link that belongs to neither a tunnel nor a pod. An nftables table that does not
// depend on links covers the moment until a new link has its programs.
//
// Package chains plans that table, and a second one that marks packets from pods.
//
// The guard stays in force without this process: programs and maps are pinned, and attachments
// belong to the links. Open adopts what an earlier process left. Programs of a new version are
// attached before the old programs are detached, so a guarded link always has one. Apply is
// idempotent.
//
// The package never removes or changes a foreign program, filter, table or file, and mounts
// nothing. It has no list of pods: the CNI plugin fills the sets of their addresses.
//
// Invariants: map entries are added before others are deleted. All changes of an nftables table are
// one transaction; one of the pods' rules keeps the pods' addresses. A link is skipped only for its
// group (pod veths, tunnels), as lo, or as an ifb.
//
// All calls work on the network namespace of the calling thread.
//
// Start with Apply in guard.go, then Plan and Diff in plan.go.
package guard
