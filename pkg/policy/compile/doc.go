// Package compile makes lines and definitions of sets of single policies. It does not know which
// pods there are.
//
// A policy that cannot be compiled, or that exceeds a bound, denies everything in the directions
// that it isolates; Problem holds the reason.
//
// Start reading at Namespaced and Cluster; Definition describes a set of peers.
package compile
