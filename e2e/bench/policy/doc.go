// Package policy measures the cost of NetworkPolicy for a node. It measures how long it takes to
// plan a policy, to write it to the kernel, to change it and to revoke connections. It also
// measures what policies add to an ADD and to connections.
//
//	cluster: 100 nodes with 100 pods each; the node measured is the first one
//	node:    a network namespace, and the Keeper of veild in it
//	lane:    a node with the guard, routing and NAT, two attached pods, and a filter between them
//
// Package world makes the objects, package lane the lanes, and package fastpath the links. All pods
// have an address of each family, so each rule of a policy becomes two rules of nftables. Each rule
// names one of 200 sets of peers.
//
// # What it promises
//
// It changes only namespaces and rules that it made. Descriptors of this process hold the
// namespaces, which therefore end with it. If the process is killed, a folder with the records of
// pods remains. A part that cannot be measured becomes a missed gate with the reason.
//
// Part change times a change from the bytes of its event in the API server's watch until the kernel
// has acknowledged the transaction. That includes decoding, but not the network and the API server.
//
// Part connections measures CPU time of the whole machine, in each lane and in two lanes without a
// policy. The difference between those two is the resolution of the measurement. A gate of
// connections is judged only if the resolution is finer than its limit. One lane stands in for the
// design of kube-network-policies: its rules send first packets by NFQUEUE to a Go program, which
// accepts all of them.
//
// Part tenant measures what the policies of one namespace cost other namespaces. It attaches and
// detaches pods as the CNI plugin does while the policies are being enforced. Package idle has the
// minute in which nothing changes.
//
// Part read is package largeobject. veild reads objects that are as large as etcd accepts.
//
// Start reading at Run in suite.go; node.go has the node. The parts are size.go, change.go with
// fastpath.go, revoke.go, add.go and tenant.go, and package lane has the connections.
package policy
