package service

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
)

// ownLabels returns the labels of the cases that do not belong to a quantity.
func ownLabels() map[string]string {
	return map[string]string{
		caseFill: "10,000 services with 100,000 endpoints, from the decoded list to the " +
			"written table",
		caseRead + toNFTables: "10,000 services with 100,000 endpoints, from when they are " +
			"requested to the written table",
		caseEntry: "An entry of a map, when all are written",
		caseChange + toNFTables: "One endpoint changed, from the event of the watch " +
			"to the written table",
		caseChange + suffixP99 + toNFTables: "One endpoint changed, 99th percentile",
	}
}

// label sets the labels of the cases of a group.
func (s *run) label(g bench.Group, q quantity) {
	for _, p := range g.Pairs {
		text := fmt.Sprintf("%s: %s (%s)", strings.ToUpper(p.Ours[:1])+p.Ours[1:], q.title,
			where(g.Name))
		s.Labels[p.Name], s.Labels[p.Name+suffixP99] = text, text+", 99th percentile"
		for _, e := range q.extras {
			s.Labels[p.Name+e.suffix] = text + ", " + e.title
		}
	}
}

// where returns a description of the reach whose name is in text.
func where(text string) string {
	if strings.Contains(text, outside.String()) {
		return "from outside to a balancer's address"
	}
	return "pod to ClusterIP"
}

// Report returns a report with the tables of the parts that were chosen.
func (s *run) Report() *report.Report {
	for _, c := range s.Result.Cases {
		if strings.HasSuffix(c.Name, suffixLoss) {
			s.Labels[c.Name] = strings.ReplaceAll(strings.TrimSuffix(c.Name, suffixLoss), "_",
				" ") + ": loss against the first size beyond the noise"
		}
	}
	return &report.Report{
		Title: "Kubeveil's table of services compared with kube-proxy, haproxy, and the direct way",
		Lead: fmt.Sprintf("Network namespaces of one machine, kernel %s, %d CPUs. All sides of "+
			"a row were measured directly after one another, in random order, in each round.",
			s.Result.Kernel, s.Result.CPUs),
		Banner: "Namespaces",
		Tables: withRows(s.published(), s.sizes()),
		Notes: append(append([]string{}, notes...),
			append(s.Notes, fmt.Sprintf("The fixed rates are %.0f connections and %.0f requests "+
				"a second.", float64(crrRate)/float64(s.Slower), float64(rrRate)/float64(s.Slower)),
				fmt.Sprintf("%d rounds of %d samples of %v, order drawn with seed %d.", s.Rounds,
					s.Turns, s.Sample, s.Seed))...),
	}
}

// withRows returns the tables that have rows. Tables of parts that were not chosen have none.
func withRows(tables ...report.Table) []report.Table {
	return slices.DeleteFunc(tables, func(t report.Table) bool { return len(t.Rows) == 0 })
}

// published returns a table with a row for each quantity for which loxilb has published a ratio.
func (s *run) published() report.Table {
	others := []string{sideNFTables, sideGuardedNFTables, sideIPTables, sideHAProxy, sideDirect,
		sideGuarded, sideIPVS}
	t := report.Table{
		Title: "Beside the ratios that loxilb published over IPVS",
		Note: "loxilb's are of its document, on three cores, and over IPVS; ours are medians of " +
			"the ratios of each round, over what is named. " +
			"Above 1 is better for rates, below 1 for times.",
		Head: append([]string{"", "by", "loxilb to IPVS"}, "ours to nftables",
			"to guarded nftables", "to iptables", "to haproxy", "to direct", "to guarded", "to IPVS", "nftables to direct",
			"routed to nftables"),
	}

	for _, r := range []reach{pod, outside} {
		for _, q := range quantities {
			rows := append([]extra{{"", "", q.unit, q.published}}, q.extras...)
			for _, e := range rows {
				group := fmt.Sprintf("%s_%s", r, q.name)
				if e.published == 0 || s.Result.Find(group+"_to_"+sideDirect+e.suffix, 0) == nil {
					continue
				}
				title := q.title
				if e.title != "" {
					title += ", " + e.title
				}
				row := []string{title, r.String(), fmt.Sprintf("%.2f", e.published)}
				for _, other := range others {
					row = append(row, s.RatioText(group+"_to_"+other+e.suffix))
				}
				t.Rows = append(t.Rows, append(row,
					s.RatioText(group+"_"+sideNFTables+"_to_direct"+e.suffix),
					s.RatioText(group+"_"+sideRouted+toNFTables+e.suffix)))
			}
		}
	}

	return t
}

// sizes returns a table of new connections per second for each number of services, as ratios to the
// first number of the same side.
func (s *run) sizes() report.Table {
	t := report.Table{
		Title: "New connections a second, by the number of services",
		Note: "Each against its own with the first number of services; the lines \"again\" are " +
			"two tables of the same size, so they are noise.",
		Head: []string{"services", "ours", "nftables", "iptables", "ours to nftables",
			"ours to iptables"},
	}

	for _, r := range reaches() {
		group := fmt.Sprintf("%s_%s_%s", partScale, r, qCRR)
		if s.Result.Find(group+suffixTwice, 0) == nil {
			continue
		}

		line := func(title, what string, first int) {
			row := []string{fmt.Sprintf("%s, %s", r, title)}
			for _, side := range []string{sideOurs, sideNFTables, sideIPTables} {
				row = append(row,
					s.RatioText(fmt.Sprintf("%s_%s_%s_to_%d", group, side, what, first)))
			}
			t.Rows = append(t.Rows, append(row, s.RatioText(group+"_"+what+toNFTables),
				s.RatioText(group+"_"+what+"_to_"+sideIPTables)))
		}

		for _, n := range s.Sizes {
			line(fmt.Sprint(n), fmt.Sprintf("%d_services", n), s.Sizes[0])
		}

		line(fmt.Sprintf("%d, %d endpoints each", s.Sizes[0], manyEndpoints),
			fmt.Sprintf("%d_endpoints", manyEndpoints), endpoints)
		t.Rows = append(t.Rows, []string{fmt.Sprintf("%s, %d, again", r, s.Sizes[0]),
			s.RatioText(group + suffixTwice), "–", "–", "–", "–"})
	}

	return t
}

var notes = []string{
	"Each side has its own client and node, and all sides share three endpoints. The lanes have " +
		"the same links, routes and kernel. In the lane \"direct\", the node has no rules and no " +
		"connection tracking, and its routes spread connections over the endpoints.",
	"nftables, iptables and IPVS are modes of kube-proxy, which the lab builds. It reads the " +
		"lists of a server that speaks the protocol of an API server, writes a lane's rules, and " +
		"is then stopped. It has its defaults, except that it uses only IPv4 and does not change " +
		"the machine's limits of connection tracking. A mode that does not write its rules " +
		"within " +
		syncLimit.String() + " is left out, and named here. Services that only fill the tables " +
		"have one endpoint. Connection tracking of all sides forgets closed connections after 2 " +
		"s instead of 10 and 120 s. This favours kube-proxy, and keeps its table from filling. " +
		"For clients from outside, these modes also translate the source (externalTrafficPolicy " +
		"Cluster). haproxy is a TCP proxy with one thread per CPU.",
	"The node of ours has all of veild in force: the guard at links and in nftables, the rules " +
		"that bind pods to their addresses, policy routing, and masquerading with connection " +
		"tracking. The other sides have only connection tracking. Ours has host routing by eBPF " +
		"(services.hostRouting), so packets to and from its pods go from link to link and bypass " +
		"netfilter. \"routed\" is the same node with veild's default, the kernel's host routing, " +
		"where all packets pass rules and connection tracking. \"Guarded\" is the same node " +
		"without a table of services: the pod's packets go the direct way. \"Guarded_nftables\" " +
		"is the same node with the rules of kube-proxy. Gates compare CPU time with it, and with " +
		"the direct way. A side \"again\" is a second measurement of the same lane: a gate is " +
		"judged only if both are closer to each other than its limit to 1, or within 3 % for a " +
		"limit of 1.",
	"Ours for pods has programs at sockets and at pods' links. The programs at sockets are " +
		"attached to a cgroup that contains the clients, so they rewrite no packet. The programs " +
		"at links see each packet, at the client and at the endpoint. Ours from outside has the " +
		"programs at links. The endpoints are pods of the node, so no tunnel is measured. The " +
		"table assigns them to another node, so that the source of packets from outside is " +
		"translated, as the other sides do.",
	"Connect, request, response: one byte each way over a new connection, which a reset closes. " +
		"The load is an open loop: a latency begins when its operation is due, so it includes " +
		"the wait for a slot. The table shows p50 and p99.",
	"Processor time is the busy time of the whole machine from /proc/stat, load and endpoints " +
		"included, divided by the operations that were due. Where the scheduler's noise " +
		"dominates latencies, it is the better figure.",
	"Clients, nodes and endpoints share the CPUs, so wrk and the endpoints limit the rates as " +
		"much as the path does. Ratios are smaller than on separate machines.",
	"A table counts as written when its batch calls have returned, because new connections are " +
		"then translated by it. For ours, veild's own client and proxy read the lists and the " +
		"watch of a server that speaks the protocol of an API server, over TLS on the loopback, " +
		"in this process. The time of a change begins when the server sends the event. " +
		"kube-proxy reads the same server and reports its times in its own metrics. It has " +
		"minSyncPeriod 1 ms instead of 1 s, which would add a pause before each change.",
}
