// Package cluster decides where things are: nodes, their keys, addresses and pod prefixes, and
// which claims about them are believed. It is pure: no clock, no I/O, no kernel. Equal claims lead
// to equal tables, regardless of the order of their arrival, and resolving a table's own claims
// again changes nothing.
//
// A source yields a State: the claims. Resolve turns it into a Table, which is believed, and a list
// of Refusals with reasons. Conflicts about addresses are settled one by one. A node that held an
// address keeps it; if two nodes list an address that no node held, no node gets it. Conflicts
// about prefixes and keys are settled by the last good table, then creation time, then name. In a
// Table no two nodes hold the same address or key, or overlapping prefixes.
//
// Evidence from the underlay, gateways and API servers, can refuse an address to a newcomer. It
// never opens what was closed.
//
// Limits: among newcomers the older node wins a prefix or a key, even if it lies. A kubelet may
// claim any address that no known node holds, unless NodeRanges bounds them. Keys are believed
// because the API server publishes them.
//
// The MTU arithmetic is in mtu.go alone. Start reading at state.go, then resolve.go, check.go
// (every forged claim, one by one) and address.go.
package cluster
