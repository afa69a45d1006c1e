// Package sites holds the cases of links between clusters that need API servers and no node: two
// control planes of the lab (e2e/lab), each with the component of the manifests and a veil-site
// with the rights of its account. It has tests only.
//
// Start reading at TestLink; ../../README.md lists which promise each test holds.
package sites
