// Package node shows the node that veilctl runs on: its status, peers, MTU, guard, services, kernel
// and leaks. It also removes Kubeveil from the node.
//
// Most verbs print an answer of this node's veild, which they get by its socket; package verb runs
// them on other nodes. Leakcheck, Host and Cleanup look at the node itself. Policies have a package
// of their own.
//
// Start reading at PrintStatus.
package node
