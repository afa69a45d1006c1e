// Package bpfmaps is the node's table of services in the kernel: the maps and
// programs of docs/design/0007-service-table.md: loaded, pinned, attached to sockets, read and
// written. Package link attaches the programs at links.
//
// It promises that the table stays in force without this process: maps and links are pinned. Open
// adopts the maps that an earlier process left. Programs of another version replace the old ones
// within their link, so there is no moment without a program. They take over what the old ones
// remember about connections: former.go. Maps of another size begin with the content in force.
// Apply makes the changes of a planner.Planner in their order, so that a reader never sees half a
// change. When it cannot make them all, the planner continues from the content that State returns.
// A map never drops an entry of the table to make room: a full map is an error.
//
// It refuses to mount anything, to attach to anything but a cgroup of the second version, and to
// remove objects that are not its own. It does not depend on links, Services or Kubernetes.
//
// Invariants: a pinned table is adopted whole or not at all; the programs in force
// and the maps that State reads belong together once AttachSockets has returned.
//
// It is larger than other packages, because what opens the maps must also take over what programs
// of another version remember: load.go, inherit.go, former.go and attach.go are one protocol.
//
// Start with Open in table.go, then load.go for pins and apply.go for writes.
package bpfmaps
