// Package service measures what it costs to reach a service: through the table of Kubeveil, and
// beside it through kube-proxy (nftables, iptables), through haproxy, and directly.
//
// # The ground
//
// Each side has a lane of its own, all of them in network namespaces of their own:
//
//	client ── node ──┬── endpoint 1     an empty HTTP handler, an echo,
//	198.18.k.2       ├── endpoint 2     iperf3 and sockperf, on all
//	                 └── endpoint 3     addresses of 198.19.128.0/17
//
// Client and node belong to one lane, so that the tables of one side cannot cost another side
// anything. The endpoints are shared. The client is a pod of the node when it uses the ClusterIP of
// a service, and a client outside when it uses the address of a balancer. In the lane "direct" the
// node has no rules, and its routes spread connections over the endpoints. Programs at sockets are
// attached to a cgroup that the run has made, with the lane's clients in it.
//
// Kubeveil has a lane for pods and one for clients outside. Their nodes have all that veild puts in
// force on a node, the guard and connection tracking included (node.go), and host routing by eBPF.
// In the lane "routed" the kernel routes, which is the default. The lane "guarded" is such a node
// without a table, for the direct path.
//
// # What it promises
//
// It touches no namespace, no rule and no cgroup but those it has made. Descriptors of this process
// hold all of them, so they end with it, as do the processes that it started. If it is killed, only
// the cgroup, an empty directory, and a folder with some files remain, and the next run removes
// them. Before a lane is measured, its service must have answered from all three endpoints. Sides
// of one quantity are measured directly after one another, in random order, in each round
// (bench.Runner). Nothing is left out: a quantity that cannot be measured is a missed gate with the
// reason. A run that is interrupted returns what it has measured until then.
//
// kube-proxy has a limit of time for the rules of a lane. In part scale, larger tables of its mode
// are left out when it does not keep that, and the report says so.
//
// IPVS is one of the sides where the kernel has it (modprobe ip_vs, and ipset installed), as in
// the virtual machine of bench-service --machine. Elsewhere IPVS is left out, and with it the gates
// that compare with it (ipvs.go).
//
// It is larger than most packages: all parts measure the same sides on the same lanes, in one run
// with one result.
//
// Start reading at Run in suite.go; lane.go has the ground, side.go the sides, quantity.go what is
// measured, programming.go and watched.go how fast a table is filled. Package peer starts the
// others, package openloop is the tool for latencies.
package service
