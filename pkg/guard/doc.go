// Package guard drops packets that must not be on the network in clear. It attaches BPF programs at
// tc to every link that belongs to neither a tunnel nor a pod. An nftables table that does not
// depend on links covers the moment until a new link has its programs.
//
// Package chains plans that table, and a second table that marks packets from pods.
//
// The guard stays in force without this process, because programs and maps are pinned, and
// attachments belong to the links. Open adopts the pins of an earlier process. Programs of a new
// version are attached before the old programs are detached, so a guarded link always has a
// program. Apply is idempotent.
//
// The package never removes or changes a foreign program, filter, table or file, and mounts no file
// system. It has no list of pods: the CNI plugin fills the sets of their addresses.
//
// Invariants:
//   - Map entries are added before others are deleted.
//   - All changes of an nftables table are one transaction. A change of the pods' rules keeps the
//     pods' addresses.
//   - Every link gets the programs, except pod veths and tunnels, which are recognised by their
//     link group, and lo and ifb links.
//
// All calls work on the network namespace of the calling thread.
//
// Start with Apply in guard.go, then Plan and Diff in plan.go.
package guard
