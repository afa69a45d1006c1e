// Package arrange joins many lines of NetworkPolicies, whose order has no meaning, into few rules
// and sets. Lines with the same peers share a set of ports. Lines with the same ports share a set
// of peers. The remaining lines become boxes of addresses and ports in one set.
//
// Start reading at Arrange; DisjointBoxes returns the elements of a set of boxes.
package arrange
