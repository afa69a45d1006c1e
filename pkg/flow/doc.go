// Package flow shows the connections of a node, and where the packets of each go: into the tunnel,
// to another process of the node, or out in clear.
//
//	conntrack ──────────┐                ┌─ RTM_GETROUTE: which link
//	untracked sockets ──┤                │
//	flows of services ──┼─► legs ─► judge ◄─ allowed IPs: which peer
//	fast path ──────────┤      │         └─ the guard: dropped there
//	samples of drops ───┘      │
//	                           └─► kept ─► veilctl flows
//
// It promises:
//   - The class of a connection follows from the kernel's present route. Address ranges only decide
//     whether an address belongs to the cluster.
//   - A connection between a pod and the cluster that leaves the node in clear is an alarm. A link
//     without the guard's programs drops nothing, so its packets count as in clear.
//   - conntrack's table is streamed. A bounded number of connections is kept per class, and the
//     others are only counted.
//   - The answer lists the kinds of traffic that the package cannot see.
//
// It never changes the node. It only works during a request of the page.
//
// Start reading at judge, then world.legs.
package flow
