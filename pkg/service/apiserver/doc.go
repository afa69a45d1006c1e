// Package apiserver probes the API servers, and decides to which of them the service of the API
// servers leads: entry 0 of the table of services. It closes connections to servers that do not
// answer.
//
//	list, configuration, maps ─► candidates ─► probes ─► judgement ─► Entry
//	                                              └► Close: connections to a silent server
//
// Promises:
//   - Entry has the best servers of each family: good ones, else slow ones, else servers that are
//     not ready, else all.
//   - A server that vanishes is noticed within 0.75 s in a cluster of up to 1,000 nodes. In larger
//     clusters a connection that retransmits to a server causes a probe at once (evidence.go).
//   - Connections to a dead server are closed, even if it left the list meanwhile or before a
//     restart: first those that wait for it, and the rest some seconds later (closing.go). No
//     connection to a server that answers is closed.
//   - All nodes together probe a server at a bounded rate (prober.Pace).
//
// Servers depends neither on Kubernetes nor on maps. It receives parsed services and slices. Tests
// replace ServersConfig and the function that Start gets. Connections (connections.go,
// closesockets.go) does what ServersConfig needs in the network namespaces of a node.
//
// Start with Servers in servers.go, then observe.go, which judges servers. Package prober probes
// one server.
package apiserver
