// Package flow shows the connections of a node, and where the packets of each go: into the tunnel,
// to another process of the node, or out in clear.
//
//	conntrack ──────────┐                ┌─ RTM_GETROUTE: which link
//	flows of services ──┼─► legs ─► judge ◄─ allowed IPs: which peer
//	samples of drops ───┘      │         └─ the guard: dropped there
//	                           └─► kept ─► veilctl flows
//
// It promises:
//   - A class is the kernel's present route, not a range of addresses. Ranges only decide what
//     counts as the cluster.
//   - A connection of a pod with the cluster that leaves in clear is an alarm. A link without the
//     guard's programs drops nothing, so it counts as clear.
//   - The table of connections is streamed. Of each class a bounded number is kept, and the others
//     are counted.
//   - What cannot be seen is named in the answer.
//
// It refuses to change anything: a page reads, and nothing runs between two pages.
//
// Start reading at judge, then world.legs.
package flow
