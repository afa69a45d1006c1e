// Package compile compiles single policies into lines and definitions of sets. It does not need to
// know which pods exist.
//
// A policy that cannot be compiled, or that exceeds a bound, denies everything in the directions
// that it isolates; Problem holds the reason.
//
// Start reading at Namespaced and Cluster; Definition describes a set of peers.
package compile
