package conformance

// reasons is the reviewed table for networking. The first match counts. A fault of Kubeveil is
// marked as such.
var reasons = []reason{
	{fate: notRun,
		pattern: `\[sig-network\] (KubeProxy|kube-proxy migration) |restarting kube-proxy|kube-proxy urls|recreate its iptables rules`, when: func(f Facts) bool {
			return f.EBPF
		},
		why: "it tests kube-proxy, and the cluster has none"},
	{fate: notRun, pattern: `-Service: sctp|client using SCTP`,
		when: func(f Facts) bool { return f.EBPF },
		why:  "ours: the table of services leaves SCTP to another proxy, and the cluster has none"},
	{fate: notRun, pattern: `\[Feature:NetworkPolicy\]`,
		when: func(f Facts) bool { return !f.Policies },
		why:  "the cluster enforces no NetworkPolicy: policy is none"},
	{fate: notRun, pattern: `\[Feature:LoadBalancer\]`,
		why: "the cluster has no cloud that makes load balancers"},
	{fate: notRun, pattern: `\[Feature:(Networking-IPv4|Networking-IPv6|Networking-DNS)\]`,
		why: "it dials hosts on the internet, which the nodes of the lab must not reach"},
	{fate: notRun, pattern: `DNS configMap nameserver Forward PTR lookup`,
		why: "it first asks for the name of 8.8.8.8, which only the internet's DNS has"},
	{fate: notRun, pattern: `\[Provider:GCE\]`,
		why: "it asks for names that only Google's cloud has"},
	{fate: notRun, pattern: `\[Feature:KubeProxyNFAcct\]`,
		when: func(f Facts) bool { return f.ProxyMode != "iptables" },
		why:  "it reads a counter of kube-proxy's iptables mode, and the cluster's is another"},
	{fate: notRun, pattern: `\[Feature:KubeProxyDaemonSetMigration\]`,
		why: "it replaces the nodes of Google's cloud by nodes with another kube-proxy"},
	{fate: notRun, pattern: `\[Feature:PerformanceDNS\]`,
		why: "it makes 10,000 services, which takes eight minutes at the 20 requests a second " +
			"that it allows itself, and asks DNS for every twentieth: what it shows is how large " +
			"a CoreDNS the cluster has"},
	{fate: notRun, pattern: `\[Feature:Networking-Performance\]`,
		when: func(f Facts) bool { return f.Emulated },
		why: "it wants 90 MB/s between nodes; emulated processors encrypt 4 MB/s (make " +
			"bench-cluster measures what can be measured)"},
	{fate: notRun, pattern: `should be rejected for evicted pods`,
		when: func(f Facts) bool { return f.Emulated },
		why: "the lab's emulated nodes do not measure the disk space that pods use " +
			"(localStorageCapacityIsolation), so pods are not evicted for it"},
	{fate: fails,
		pattern: `fallback to local terminating endpoints when there are no ready endpoints with externalTrafficPolicy=Local`, when: func(f Facts) bool {
			return f.Emulated && !f.EBPF
		},
		why: "upstream: its server runs for 100 s after SIGTERM, and five rounds of three " +
			"kubectl exec must pass in this time; emulated nodes need 26 s for a round"},
	{fate: fails, pattern: `client using SCTP should enforce policy based on Ports`,
		when: func(f Facts) bool { return f.Emulated && !f.EBPF },
		why: "upstream: agnhost's client of SCTP writes after its server has answered and closed, " +
			"which ends with EPIPE on a slow node; with the agnhost of Kubernetes 1.28 it passes"},
	{fate: notRun, pattern: `\[sig-network\] DNS `, when: func(f Facts) bool { return !f.DNS },
		why: "the cluster has no DNS: no service kube-system/kube-dns"},
	{fate: notRun,
		pattern: `\[sig-network\] Networking Granular Checks|NodePort|two nodes|on multiple nodes`,
		when: func(f Facts) bool {
			return f.Nodes < 2
		},
		why: "it needs two nodes"},
}
