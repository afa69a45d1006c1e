package conformance

// reasons is the reviewed table: the first match wins. What is ours says so.
var reasons = []reason{
	{fate: notRun, pattern: `\[Feature:NetworkPolicy\]`,
		why: "ours: Kubeveil does not enforce NetworkPolicy yet; it refuses what is not of the cluster, and allows the rest"},
	{fate: notRun, pattern: `\[Feature:LoadBalancer\]`,
		why: "the cluster has no cloud that makes load balancers"},
	{fate: notRun, pattern: `\[Feature:SCTPConnectivity\]`,
		why: "SCTP is an optional feature of networks, and needs the kernel's module sctp on the nodes; not looked at yet"},
	{fate: notRun, pattern: `\[Feature:(Networking-IPv4|Networking-IPv6|Networking-DNS)\]`,
		why: "it dials hosts on the internet, which the nodes of the lab must not reach"},
	{fate: notRun, pattern: `\[Provider:GCE\]`,
		why: "it asks for names that only Google's cloud has"},
	{fate: notRun, pattern: `\[Feature:KubeProxyNFAcct\]`,
		why: "it reads a counter of kube-proxy's iptables mode; the cluster's is nftables"},
	{fate: notRun, pattern: `\[Feature:KubeProxyDaemonSetMigration\]`,
		why: "it replaces the nodes of Google's cloud by others with another kube-proxy"},
	{fate: notRun, pattern: `\[Feature:PerformanceDNS\]`,
		why: "it makes ten thousand services to measure DNS: a benchmark of the cluster, not of its network"},
	{fate: notRun, pattern: `\[Feature:Networking-Performance\]`, when: func(f Facts) bool { return f.Emulated },
		why: "it wants 90 MB/s between nodes; emulated processors encrypt 4 MB/s (make bench-cluster measures what can be measured)"},
	{fate: notRun, pattern: `\[sig-network\] DNS `, when: func(f Facts) bool { return !f.DNS },
		why: "the cluster has no DNS: no service kube-system/kube-dns"},
	{fate: notRun, pattern: `\[sig-network\] Networking Granular Checks|NodePort|two nodes|on multiple nodes`, when: func(f Facts) bool { return f.Nodes < 2 },
		why: "it needs two nodes"},
}
