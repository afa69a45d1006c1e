// Package cluster says where things are: nodes, their keys, addresses and pod
// prefixes, and which of the claims about them are believed. It is pure: no
// clock, no input or output, no kernel. The same claims give the same table, in
// whatever order they came.
//
// A source yields a State (what is claimed). Resolve turns it into a Table
// (what is believed) and a list of Refusals (what is not, and why); conflicts
// are settled by the last good table, then creation time, then name. The MTU
// arithmetic is in mtu.go and nowhere else.
//
// Start reading at state.go, then resolve.go.
package cluster
