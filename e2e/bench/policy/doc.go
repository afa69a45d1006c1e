// Package policy measures the cost of NetworkPolicy for a node. It measures how long it takes to
// plan a policy, to write it to the kernel, to change it and to revoke connections. It also
// measures what policies add to an ADD and to connections.
//
//	cluster: 100 nodes with 100 pods each; the node measured is the first one
//	node:    a network namespace, and the Keeper of veild in it
//	lane:    a node with the guard, routing and NAT, two attached pods, and what judges between them
//
// Package world makes the objects, and package lane the lanes. All pods have an address of each
// family, so each rule of a policy becomes two rules of nftables. Each rule names one of 200 sets
// of peers.
//
// # What it promises
//
// It touches no namespace and no rule but its own. Namespaces are held by descriptors of this
// process and end with it. A folder with the records of pods remains if the process is killed.
// Nothing is left out: a part that cannot be measured is a missed gate with the reason.
//
// A change of part change is timed from the bytes of its event in the API server's watch until the
// kernel has acknowledged the transaction. That includes decoding, and the 2 ms for which the
// Keeper gathers changes. The network and the API server are not in it.
//
// Connections are measured by the CPU time of the whole machine, each lane beside two lanes without
// a policy. The difference between those two is the resolution of the measurement. A gate of
// connections is judged only where the resolution is finer than its limit. One lane stands in for
// the shape of kube-network-policies: first packets go to a Go program by NFQUEUE, and all are
// accepted.
//
// Part tenant measures what the policies of one namespace cost the others: pods are attached and
// detached as the CNI plugin does while they come in force.
//
// Part read has a lab with the whole veild and a real API server (e2e/lab). veild reads objects
// there that are as large as etcd accepts. One repeated field makes each of them large.
//
// Start reading at Run in suite.go; node.go has the node. The parts are size.go, change.go with
// fastpath.go, revoke.go, add.go, tenant.go, read.go and connections.go.
package policy
