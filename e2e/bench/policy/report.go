package policy

import (
	"fmt"
	"maps"

	"github.com/kubeveil/kubeveil/e2e/bench/policy/lane"
	"github.com/kubeveil/kubeveil/e2e/bench/policy/largeobject"
	"github.com/kubeveil/kubeveil/e2e/bench/policy/world"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
)

// labels returns the titles of the cases, keyed by name.
func (z scales) labels() map[string]string {
	rules := func(s world.Scale) int { return s.Policies * s.Rules }
	pods := z.large.Nodes * z.large.Pods
	large := fmt.Sprintf("%d pods, %d policies, %d rules", pods, z.large.Policies, rules(z.large))
	one := "one pod in another set of peers"

	out := map[string]string{
		casePlan:     large + ": planned",
		caseKernel:   large + ": from plan to kernel",
		caseAdopt:    large + ": read by a veild that starts again, and left as it is",
		caseMemory:   fmt.Sprintf("heap of veild for %d pods", z.node.Nodes*z.node.Pods),
		caseDirect:   fmt.Sprintf("%s, %d rules, without the Keeper", one, rules(z.large)),
		casePod:      fmt.Sprintf("%s, node with %d rules", one, rules(z.node)),
		casePodLarge: fmt.Sprintf("%s, node with %d rules", one, rules(z.large)),
		caseEdit: fmt.Sprintf("one policy of %d rules edited, node with %d rules", z.node.Rules,
			rules(z.node)),
		caseFastPath: fmt.Sprintf("policy that takes the fast path from pods with %d open "+
			"connections", z.opened),
		caseRevokeFew: fmt.Sprintf("1 %% of %d connections revoked", z.connections),
		caseRevokeAll: fmt.Sprintf("then the rest of %d connections revoked", z.connections),
		caseAddBare:   "elements that ADD writes without policies",
		caseAdd:       "elements that ADD writes with policies",
		caseAddMore:   "additional elements that ADD writes because of policies",
	}
	for _, name := range []string{caseDirect, casePod, casePodLarge, caseEdit} {
		out[name+suffixP99] = out[name] + ", p99"
	}
	for _, name := range []string{caseRevokeFew, caseRevokeAll} {
		out[name+suffixBehind] = out[name] + ", directly after another revocation"
	}
	maps.Copy(out, largeobject.Labels(z.swollen))
	for i, size := range []int{z.lines, z.selectors, beyond} {
		of := fmt.Sprintf("%d %s", size, shapes[i].what)
		for suffix, text := range map[string]string{
			suffixApply:              "CPU until they are in force",
			suffixAdd + suffixP99:    "ADD of another pod meanwhile, p99",
			suffixDel + suffixP99:    "DEL of another pod meanwhile, p99",
			suffixOther + suffixP99:  "a transaction of another table meanwhile, p99",
			suffixEdit + suffixP99:   "then another namespace's policy edited, p99",
			suffixBeside:             "another namespace's policy edited while they change each second",
			suffixBeside + suffixP99: "the same, p99",
			suffixEvent:              "then an event of its pod and of another's, CPU of both",
			suffixIdle:               "then CPU of a minute in which nothing changes",
		} {
			out[caseTenant(shapes[i].name, suffix)] = of + ": " + text
		}
	}
	maps.Copy(out, lane.Labels())
	return out
}

// peers is a table of figures that other projects published, for other machines and clusters.
var peers = report.Table{
	Title: "What others published",
	Note: "Measured by others on other machines and clusters: they show the order of magnitude, " +
		"and cannot be compared.",
	Head: []string{"what", "whose", "figure"},
	Rows: [][]string{
		{"change to in force", "Cilium 1.8, report.rst", "< 600 ms an endpoint for 250 policies; " +
			"about 3 s for 250 cluster-wide ones (1,000 nodes, 50,000 pods)"},
		{"change to in force", "OVN-Kubernetes, openshift/svt#796", "deny active after 2 s, " +
			"inactive after 1 s (2,000 pods)"},
		{"change to in force", "the upstream's tests", "3 s allowed"},
		{"pod relabelled", "Cilium, identity-max-jitter", "up to 30 s by default"},
		{"first plan", "Antrea#566, #2333", "about 20 minutes before #566 (100,000 pods, 75,000 " +
			"policies); 1.9 to 25 s (10,000 pods, 10,000 policies)"},
		{"new pod", "AWS, aws-network-policy-agent#345", "open for 1 to 2 s; in strict mode mute " +
			"for 7 to 9 s (#271)"},
		{"new pod", "kube-router#873", "open until its first sync, for less than 5 s"},
		{"new connections", "kube-network-policies, docs/testing/README.md", "2,317 requests/s, " +
			"1,000 at a time; p50 5 ms, p90 1,023 ms (its table of connections was full)"},
		{"new connections", "Romana, iptables", "7 % fewer with 200 policies"},
		{"revocation", "kube-network-policies", "at least 30 s between two runs"},
		{"memory", "Cilium", "10.5 KiB a pod"},
	},
}

// Report returns the report with the notes of all parts.
func (s *run) Report() *report.Report {
	z := s.scales
	for _, c := range s.Result.Cases {
		if c.Incomplete {
			s.Labels[c.Name] += fmt.Sprintf(", incomplete: %d of %d rounds", c.Ours.N, s.Rounds)
		}
	}
	return &report.Report{
		Title: "NetworkPolicy: what it costs a node",
		Lead: "Planning, writing, changing and revoking, by the packages that veild runs, in network " +
			"namespaces of this machine.",
		Tables: []report.Table{peers},
		Notes: append(s.Notes,
			fmt.Sprintf("The cluster has %d nodes with %d pods each; each pod has an address of both "+
				"families. A rule of a policy becomes a rule of nftables for each family.",
				z.large.Nodes, z.large.Pods),
			fmt.Sprintf("All rules select pods of the measured node, and refer to %d sets of peers.",
				world.Tiers),
			"A change is timed from the bytes of its event in the watch until the kernel has "+
				"acknowledged it. In it is decoding the event; the network and the API server are not.",
			"A policy that takes the fast path away (hostRouting ebpf) is timed until it is in "+
				"force. By then conntrack tracks the open connections that the policy allows. The "+
				"others are dropped from then on.",
			"Changes without the Keeper are planned and written without an event.",
			"Memory is what the heap grows by when the Keeper learns of the pods of all nodes. Garbage "+
				"and buffers of the watch are not in it.",
			"A revocation is timed from the call that sets the policy until the last connection "+
				"is deleted. Directly after another revocation the Keeper pauses for up to 500 ms.",
			"Connections are IPv4 between two pods of one node, which has the guard, routing and "+
				"NAT of veild in force, also without a policy. Both ends are in one thread.",
			"CPU time of connections covers the whole machine, all that is not idle, for each "+
				"10^9 bytes or each connection. A new connection carries one byte and is reset.",
			"The program behind NFQUEUE is a stand-in for the shape of kube-network-policies. It "+
				"accepts all packets at once, so the real one costs more.",
			"A gate of connections is judged only if the control, a second lane without a policy, "+
				"differs from the first by less than the gate's limit in every round.",
			"Each figure is the median of the rounds; p99 is over the changes of one round.",
		),
	}
}
