// Package policy holds the cases of policies on nodes, in the lab of namespaces (e2e/lab):
// NetworkPolicy and ClusterNetworkPolicy as pods and nodes meet them, and veild under the admission
// policy for VeilNodes. It has tests only.
//
// Start reading at TestNetworkPolicies; ../../README.md lists which promise each test holds.
package policy
