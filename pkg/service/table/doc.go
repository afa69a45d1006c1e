// Package table is the node's table of services in the kernel: the maps and
// programs of docs/design/0007-service-table.md: loaded, pinned, attached to sockets, read and
// written. Package link attaches the programs at links.
//
// It promises that what it put in force stays so without this process: maps and links are pinned.
// Open adopts what an earlier process left; programs of another version take the place of the old
// ones within their link, so there is no moment without one, and take over what those remember of
// connections; maps of another size begin with what is in force. Apply makes the changes of a
// service.Planner in their order, so that a reader never sees half of one; when it cannot make them
// all, State says what is there, from which the planner goes on. A map never drops an entry of the
// table to make room: a full one is an error.
//
// It refuses to mount anything, to attach to what is no cgroup of the second version,
// and to take away what is not its own. It knows no links, no Services and no Kubernetes.
//
// Invariants: a pinned table is adopted whole or not at all; the programs in force
// and the maps that State reads belong together once AttachSockets has returned.
//
// It is larger than other packages, because what opens the maps must also take over what programs
// of another version remember: load.go, inherit.go and attach.go are one protocol.
//
// Start with Open in table.go, then load.go for pins and apply.go for writes.
package table
