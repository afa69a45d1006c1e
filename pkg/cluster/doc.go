// Package cluster says where things are: nodes, their keys, addresses and pod
// prefixes, and which of the claims about them are believed. It is pure: no
// clock, no input or output, no kernel. The same claims give the same table, in
// whatever order they came, and resolving a table's own claims again changes
// nothing.
//
// A source yields a State (what is claimed). Resolve turns it into a Table
// (what is believed) and a list of Refusals (what is not, and why). Conflicts about
// addresses are settled one by one: the node that had one keeps it, and one that two nodes
// list and nobody had is nobody's. Those about prefixes and keys are settled by the last
// good table, then creation time, then name. In a Table no two nodes hold the same address
// or key, or prefixes that overlap.
//
// What comes from the underlay, gateways and API servers, is evidence: it can refuse an
// address to a newcomer, and opens nothing that was closed.
//
// What it cannot do: among newcomers the older node wins a prefix or a key, also when it
// is the one that lies, and a kubelet may claim any address that nobody known holds, unless
// NodeRanges bounds them. Keys are believed because the API server says so.
//
// The MTU arithmetic is in mtu.go and nowhere else. Start reading at state.go,
// then resolve.go, check.go (every forged claim, one by one) and address.go.
package cluster
