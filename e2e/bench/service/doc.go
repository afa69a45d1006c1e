// Package service measures what it costs to reach a service: through the table of Kubeveil, and
// beside it through kube-proxy (nftables, iptables), through haproxy, and directly.
//
// # The test bed
//
// Each side has its own lane, which consists of network namespaces:
//
//	client ── node ──┬── endpoint 1     an empty HTTP handler, an echo,
//	198.18.k.2       ├── endpoint 2     iperf3 and sockperf, on all
//	                 └── endpoint 3     addresses of 198.19.128.0/17
//
// A lane has its own client and node, so that the tables of one side cannot slow down another side.
// The endpoints are shared. A client that uses the ClusterIP of a service is a pod of the node; a
// client that uses the address of a load balancer is outside. In the lane "direct" the node has no
// rules, and its routes spread connections over the endpoints. Programs at sockets are attached to
// a cgroup that the run has made, with the lane's clients in it.
//
// Kubeveil has a lane for pods and one for clients outside. Their nodes have everything that veild
// installs on a node, including the guard and connection tracking (node.go), and host routing by
// eBPF. In the lane "routed" the kernel routes, which is the default. The lane "guarded" is such a
// node without a table; its clients use the direct path.
//
// # What it promises
//
// It changes only namespaces, rules and cgroups that it made. Descriptors of this process hold the
// namespaces, so they end with it, as do the processes that it started. If it is killed, only an
// empty cgroup directory and a folder with some files remain; the next run removes them. Before a
// lane is measured, its service must have answered from all three endpoints. Sides of one quantity
// are measured directly after one another, in random order, in each round (bench.Runner). A part
// that cannot be measured becomes a missed gate with the reason. An interrupted run returns what it
// has measured until then.
//
// kube-proxy must write the rules of a lane within a time limit. In part scale, if it exceeds the
// limit, larger tables of the same mode are left out, and the report lists them.
//
// IPVS is a side if the kernel has it (modprobe ip_vs, and ipset installed), as in the virtual
// machine of bench-service --machine. Elsewhere the gates that compare with IPVS are left out too
// (ipvs.go).
//
// It is larger than most packages, because all parts measure the same sides on the same lanes, in
// one run with one result.
//
// Start reading at Run in suite.go. lane.go has the lanes, side.go the sides, and quantity.go the
// quantities. programming.go and watched.go measure how fast a table is filled. Package peer starts
// kube-proxy and configures haproxy; package openloop measures latencies.
package service
