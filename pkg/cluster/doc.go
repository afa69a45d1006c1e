// Package cluster decides where things are: nodes, their keys, addresses and pod prefixes, and
// which claims about them are believed. It is pure: it uses no clock, no I/O and no kernel. Equal
// claims result in equal tables, regardless of the order of their arrival. Resolving the claims of
// a table again results in the same table.
//
// A source yields a State, which holds the claims of nodes. Resolve returns a Table with the
// believed claims, and a list of Refusals with reasons. Each address is assigned separately. A node
// that held an address keeps it. If two nodes list an address that no node held, it is assigned to
// no node. Conflicts about prefixes and keys are decided by the last good table, then by creation
// time, then by name. In a Table no two nodes hold the same address or key, or overlapping
// prefixes.
//
// A node of another cluster (Site) has a name that no node of this cluster can have. It gets only
// prefixes and addresses in the ranges of its site, and no key of this cluster's nodes. What is
// decided about this cluster's nodes does not depend on it.
//
// Evidence from the underlay (gateways and API servers) can refuse an address to a newcomer. It
// never opens an address that was closed.
//
// Limits: among newcomers the older node wins a prefix or a key, even if its claim is false. A
// kubelet can claim any address that no known node holds, unless NodeRanges restricts addresses.
// Keys are believed because the API server publishes them.
//
// A Resolver decides about successive states. It equals Resolve, but decides only about nodes that
// changed and nodes that are related to them. It needs the internals of Resolve, which is why the
// package is larger than most.
//
// Only mtu.go computes MTUs. Start reading at state.go, then resolve.go, check.go (all cases of
// forged claims) and address.go, then resolver.go.
package cluster
