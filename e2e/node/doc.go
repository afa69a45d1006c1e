// Package node holds the cases of what happens on nodes: the network, its services and the stores
// of volumes, in the lab of namespaces (e2e/lab). It has tests only.
//
// Each case starts a lab, whose leak oracle reads every port of the bridge, and ends with what the
// oracle saw. A case that needs the plaintext of a control run makes it first: an oracle that finds
// none there proves nothing. Several subjects share one lab where a start costs more than the
// cases; that is why they are one package.
//
// Start reading at veil_test.go; ../README.md says which promise each test holds.
package node
