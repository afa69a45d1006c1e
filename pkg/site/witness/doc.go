// Package witness lets veil-site know which nodes of other clusters do not answer in their tunnels,
// where no service table of veild judges their endpoints:
//
//	pkg/reach ─► Feature ─► Socket, GET /sites/dead    veild of a node
//	    ─► Watcher ─► link.Linker ─► EndpointSlices    veil-site on the node
//
// Promises:
//   - Nodes are probed only while a veil-site asks, and only by the veild of its node: one echo per
//     second to each node of sites whose services are imported.
//   - A veild that has just begun to probe judges nothing.
//   - A Watcher keeps the last answer for a while without a veild, and then counts no node as dead.
//     So a restart of veild changes no EndpointSlice.
//
// A node that only this node cannot reach counts as dead for the whole cluster. Its endpoints stay
// in use where an import has no other ready one, so a wrong answer moves connections and ends no
// service. While no veild answers, a Watcher reports why, and the SiteLinks show it.
//
// The socket does not depend on the address of veild's metrics, which may be an address of the node, or missing.
// Start with Feature in feature.go.
package witness
