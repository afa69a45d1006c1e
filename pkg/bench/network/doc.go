// Package cluster is the performance suite on a cluster that a kubeconfig points to: bandwidth and
// latency between pods on two nodes, ours beside the kernel's WireGuard configured by hand and
// beside the network in clear.
//
//	client pod ─ eth0 ──── veil0 ═══════════ ours ══════════ veil0 ──── eth0 ─ server pod
//	 on node A ─ bare0 ─── kvbench-wg ══ bare WireGuard ══ kvbench-wg ─ bare0 ─ on node B
//	           └ clear0 ── underlay ──────── in clear ──────── underlay ── clear0 ┘
//
// The pods, their processes and their processors are the same for all three; only the address that
// the client dials differs. The bare device is in a network namespace of its own on each node,
// where nothing but it looks at its packets. A privileged pod on each of the two nodes (veil-tools
// agent) gives them the other two interfaces, from addresses outside the cluster's ranges
// (Options.Prefix), reads /proc/stat and the links' counters, and says what machine it is on.
//
// It promises: a figure counts only when the links' counters show that the traffic went the way the
// figure's name says; sides are measured directly after one another (bench.Runner); what it made on
// nodes and in the API is removed when Run returns, and with the privileged pods when it could not.
// What cannot be measured on a cluster is listed as skipped, with the reason. It changes nothing of
// the cluster's own but what Options let it: MTU and rate of the link.
//
// It refuses a cluster with fewer than two nodes that are Ready and schedulable, and nodes without
// IPv4.
//
// It is larger than most packages: every part needs the same two nodes with their three sides, and
// proves by the same counters which way the traffic went.
//
// Start reading at Run.
package network
