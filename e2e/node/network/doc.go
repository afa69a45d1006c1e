// Package network holds the cases of what the network promises on nodes, in the lab of namespaces
// (e2e/lab): encryption, the guard, forged objects and packets, narrow paths, and the life of a
// node from its installation to its removal. It has tests only.
//
// Each case starts a lab, whose leak oracle reads every port of the bridge, and ends with a check
// of the oracle's result. Some cases first make a control run with plaintext. If the oracle does
// not find this plaintext, its result proves nothing.
//
// It is larger than most packages, because its cases share the flows, the flushes and the search
// for secrets. Code that other packages need too is in nodetest.
//
// Start reading at veil_test.go; ../../README.md lists which promise each test holds.
package network
