// Package node shows the node that veilctl runs on: its status, peers, MTU, guard, services, kernel
// and leaks. It also removes Kubeveil from the node.
//
// Most verbs print an answer of this node's veild, which they read from its socket. Package verb
// runs these verbs on other nodes. Leakcheck, Host and Cleanup work on the node itself. The verbs
// about policies are in package policy.
//
// Start reading at PrintStatus.
package node
