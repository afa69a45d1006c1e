// Package arrange makes few rules and sets of many lines of NetworkPolicies, whose order has no
// meaning: lines with the same peers share a set of ports, lines with the same ports a set of
// peers, and what is left becomes boxes of addresses and ports in one set.
//
// Start reading at Arrange; DisjointBoxes makes the elements of a set of boxes.
package arrange
