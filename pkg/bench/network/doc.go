// Package network is the performance suite for a cluster that a kubeconfig names. It measures
// bandwidth and latency between pods on two nodes, for Kubeveil, for the kernel's WireGuard
// configured by hand, and for the network in clear.
//
//	client pod ─ eth0 ──── veil0 ═══════════ ours ══════════ veil0 ──── eth0 ─ server pod
//	 on node A ─ bare0 ─── kvbench-wg ══ bare WireGuard ══ kvbench-wg ─ bare0 ─ on node B
//	           └ clear0 ── underlay ──────── in clear ──────── underlay ── clear0 ┘
//
// The pods, their processes and their processors are the same for all three; only the address that
// the client dials differs. The bare device is in a network namespace of its own on each node, so
// no program of Kubeveil or kube-proxy inspects its packets. A privileged pod on each of the two
// nodes (veil-tools agent) creates the other two interfaces, with addresses outside the cluster's
// ranges (Options.Prefix). It also reads /proc/stat and the links' counters, and reports the kind
// of machine.
//
// It promises that a figure counts only if the links' counters show that the traffic took the path
// in the figure's name. Sides are measured directly after one another (bench.Runner). Run removes
// what it made on nodes and in the API before it returns. If it cannot, the end of the privileged
// pods removes it. A quantity that cannot be measured on a cluster is listed as skipped, with the
// reason. Run does not change the cluster itself, except what Options allow: the MTU and the rate
// of the link.
//
// It refuses a cluster with fewer than two nodes that are Ready and schedulable, and nodes without
// IPv4.
//
// Package testbed makes the nodes' pods and the interfaces of the three sides. The parts prove by
// the same counters which path the traffic took.
//
// Start reading at Run.
package network
