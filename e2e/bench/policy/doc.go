// Package policy measures what NetworkPolicy costs a node: to plan it, to write it to the kernel,
// to change it, to revoke connections, and what an ADD writes more.
//
//	cluster: 100 nodes with 100 pods each; the node measured is the first one
//	node:    a network namespace, and the Keeper of veild in it
//
// Objects are made by cluster, in world.go. All pods have an address of each family, so each rule
// of a policy becomes two rules of nftables. Each rule names a set of peers, of which there are
// 200.
//
// # What it promises
//
// It touches no namespace and no rule but its own: namespaces are held by descriptors of this
// process and go with it. A folder with the records of pods is left if the process is killed.
// Nothing is left out: a part that cannot be measured is a missed gate with the reason.
//
// A change is timed from the call that tells it to the Keeper until the kernel has acknowledged the
// transaction. That includes the 2 ms for which the Keeper gathers changes. Decoding the event of
// the API server's watch is not in it.
//
// Start reading at Run in suite.go; node.go has the node. The parts are size.go, change.go,
// revoke.go and add.go.
package policy
