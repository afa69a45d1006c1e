// Package simulator shows that a node follows a large cluster in all of its life: a complete veild
// beside a real API server that has thousands of Nodes, VeilNodes and Services, and 100 endpoints
// for each Service. Nothing else of these nodes exists.
//
//	Writer (protobuf, JSON) ─► kube-apiserver, etcd in memory ─► veild ─► kernel
//	                                  └───── counted by entry ──────┘
//
// Each part is a scenario. It ends when the kernel has exactly what the API server has: the
// frontends and backends of services, the peers of the tunnel with their keys and prefixes, and the
// routes to them. Then the node must be idle: its CPU time is measured in a minute that begins a
// minute later. What the API server has is read from it, and what the node must have is computed
// without veild's planners.
//
//	cold       veild starts, and the API server has everything
//	churn      nodes are replaced, and endpoints change, for minutes
//	delete     half of the nodes and all slices are deleted, and come back
//	cut        the same while the node cannot reach the API server, whose history is compacted
//	kill       veild is killed at a quarter, half and three quarters of its lists
//	restart    the API server restarts while veild lists
//	bad        one VeilNode claims what another node has, and a key that is none
//
// Four more parts measure quantities. The first is of a second node, before there are services:
//
//	nodes      peak of veild's memory
//	change     nodes get new keys, one at a time: CPU, and time to the device
//	remove     half of the nodes are removed while pods are added and a stream passes a tunnel
//	silent     a packet for each node, none of which answers: CPU and memory of veil-wg
//
// Start reading at Run in suite.go. scenario.go and row.go have the parts, and world.go what the
// API server and the kernel have.
package simulator
