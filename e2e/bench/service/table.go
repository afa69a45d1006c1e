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
		Title: "Kubeveil's table of services beside kube-proxy, haproxy, and the direct way",
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
	others := []string{sideNFTables, sideIPTables, sideHAProxy, sideDirect, sideGuarded, sideIPVS}
	t := report.Table{
		Title: "Beside the ratios that loxilb published over IPVS",
		Note: "loxilb's are of its document, on three cores, and over IPVS; ours are medians of " +
			"the ratios of each round, over what is named. " +
			"Above 1 is better for rates, below 1 for times.",
		Head: append([]string{"", "by", "loxilb to IPVS"}, "ours to nftables", "to iptables",
			"to haproxy", "to direct", "to guarded", "to IPVS", "nftables to direct",
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
					row = append(row, s.ratio(group+"_to_"+other+e.suffix))
				}
				t.Rows = append(t.Rows, append(row,
					s.ratio(group+"_"+sideNFTables+"_to_direct"+e.suffix),
					s.ratio(group+"_"+sideRouted+toNFTables+e.suffix)))
			}
		}
	}

	return t
}

// ratio returns the ratio of a case as text, or a dash if the case does not exist.
func (s *run) ratio(name string) string {
	c := s.Result.Find(name, 0)
	if c == nil || c.Ratio == nil {
		return "–"
	}
	return fmt.Sprintf("%.2f (%.2f to %.2f)", c.Ratio.Median, c.Ratio.Min, c.Ratio.Max)
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
				row = append(row, s.ratio(fmt.Sprintf("%s_%s_%s_to_%d", group, side, what, first)))
			}
			t.Rows = append(t.Rows, append(row, s.ratio(group+"_"+what+toNFTables),
				s.ratio(group+"_"+what+"_to_"+sideIPTables)))
		}

		for _, n := range s.Sizes {
			line(fmt.Sprint(n), fmt.Sprintf("%d_services", n), s.Sizes[0])
		}

		line(fmt.Sprintf("%d, %d endpoints each", s.Sizes[0], manyEndpoints),
			fmt.Sprintf("%d_endpoints", manyEndpoints), endpoints)
		t.Rows = append(t.Rows, []string{fmt.Sprintf("%s, %d, again", r, s.Sizes[0]),
			s.ratio(group + suffixTwice), "–", "–", "–", "–"})
	}

	return t
}

var notes = []string{
	"Each side has a client and a node of its own, and all share three endpoints; the lanes' " +
		"links, routes and kernel are the same. In the lane \"direct\" the node has no rules and " +
		"no connection tracking, and its routes spread connections over the endpoints.",
	"nftables, iptables and IPVS are modes of kube-proxy, the program that the lab builds. It " +
		"writes a lane's rules from the lists of a server that speaks as an API server does, and " +
		"is ended then. It has its defaults, but IPv4 alone, and it leaves the machine's limits " +
		"of connection tracking as they are. What it does not write within " +
		syncLimit.String() + " is left out, and named here. Services that only fill the tables " +
		"have one endpoint. All connection tracking forgets what is closed after 2 s instead of " +
		"10 and 120: in their favour, and so that its table does not fill. From outside they " +
		"translate the source too (externalTrafficPolicy Cluster). haproxy is a proxy of TCP " +
		"with a thread for each CPU.",
	"The node of ours has everything that veild has in force: the guard, at links and in " +
		"nftables, the rules that keep pods to their addresses, policy routing, " +
		"masquerading, and with that connection tracking; none of the others has such a thing but the last. " +
		"Ours has host routing by eBPF (services.hostRouting), so what goes to its pods and what " +
		"they answer goes from link to link, past netfilter; \"routed\" is that node " +
		"with veild's default, the kernel's host routing, where all of it meets rules and connection " +
		"tracking. Guarded is that node without a table of services: what the pod sends goes the direct way.",
	"Ours for pods: the programs at sockets, attached to a cgroup that has the clients in it, so " +
		"no packet is rewritten, and those at pods' links, which look at each, at the client's " +
		"and at the endpoint's. Ours from outside: the programs at links. " +
		"The endpoints are pods of the node, so no tunnel is measured, but the table has them on " +
		"another, so that the source of what comes from outside is translated, as the others do.",
	"Connect, request, response: a byte each way over a connection of its own, closed by " +
		"a reset. Latencies are from the moment at which an operation was to begin, in an open loop, so " +
		"that waiting for a slot counts; p50, and p99 beside it.",
	"Processor time is busy time of the whole machine, load and endpoints included, from " +
		"/proc/stat, by the operations that were due. Where latencies are the noise of the " +
		"scheduler, it is the better figure.",
	"Clients, nodes and endpoints share the CPUs, so rates are bounded by wrk and the endpoints " +
		"as much as by the path; ratios are smaller than on machines of their own.",
	"A written table is one whose batch calls have returned: new connections are translated by " +
		"it. Ours is kept by veild's own client and proxy, which read the lists and the watch of " +
		"a server that speaks as an API server does, over TLS on the loopback, in this process; " +
		"a change is timed from when the server takes the event to write it. kube-proxy reads " +
		"the same, and reports its times in its own metrics. It has minSyncPeriod 1 ms " +
		"instead of 1 s, which would be a pause before each change.",
}
