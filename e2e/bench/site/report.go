package site

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
)

// title returns the title of a group.
func title(group string) string {
	var rate, n int
	switch {
	case group == groupNew:
		return fmt.Sprintf("New connections, %d clients", connectors)
	case group == groupFixed:
		return fmt.Sprintf("%d new connections/s", connectRate)
	case group == toolGroup(partH2load):
		return fmt.Sprintf("h2load, %d requests/s, %d connections", h2loadRate, toolClients)
	case group == toolGroup(partPgbench):
		return fmt.Sprintf("pgbench -S, %d transactions/s, %d connections", pgbenchRate, toolClients)
	}
	if _, err := fmt.Sscanf(group, partRequests+"_%d_%d", &rate, &n); err != nil {
		return group
	}
	return fmt.Sprintf("%d requests/s, %d connections", rate, n)
}

// label sets the labels of the cases of a group.
func (s *run) label(g bench.Group) {
	for _, p := range g.Pairs {
		what := strings.TrimPrefix(p.Name, g.Name+"_")
		text := map[string]string{"engine_to_pair": "Kubeveil", "added": "added by Kubeveil"}[what]
		if text == "" {
			side, control := strings.CutSuffix(what, again)
			text = map[string]string{sideEngineAdded: "added by Kubeveil",
				sidePairAdded: "added by the best pair"}[side]
			if text == "" {
				text = laneTitles[side]
			}
			if control {
				text += " again, a control"
			}
		}
		text = title(g.Name) + ": " + text
		s.Labels[p.Name], s.Labels[p.Name+"_p99"] = text, text+", P99"
		s.Labels[p.Name+suffixCPU] = fmt.Sprintf("%s, CPU per %d operations", text, perOperations)
	}
}

// Report returns the report.
func (s *run) Report() *report.Report {
	tables := slices.DeleteFunc([]report.Table{s.latencies(), s.rates(), s.held()},
		func(t report.Table) bool { return len(t.Rows) == 0 })
	return &report.Report{
		Title: "A service of another cluster: linked sites beside pairs of TLS proxies",
		Lead: fmt.Sprintf("Client pod, node, link, node, server pod, on one machine: kernel %s, %d "+
			"CPUs. Each lane was measured twice in each round, in random order.", s.Result.Kernel,
			s.Result.CPUs),
		Banner: "Namespaces",
		Tables: tables,
		Notes: slices.Concat(notes, s.Notes, []string{fmt.Sprintf(
			"%d rounds of two samples of %v, order drawn with seed %d.", s.Rounds, s.Sample,
			s.Seed)}),
	}
}

var notes = []string{
	"Kubeveil: the client dials the ClusterIP of the Service that is derived from an import. veild " +
		"translates it (serviceProxy: ebpf) and veil-wg encrypts, on both nodes. The objects are " +
		"those that veil-site writes; veil-site itself carries no packet and does not run. Node a " +
		"has the default reach, exports only; node b, which has no API server in this lab, is open.",
	"Pairs: a proxy on node a and one on node b, with mutual TLS 1.3, AES-128-GCM, and session " +
		"resumption: haproxy with two threads, and a program of crypto/tls. \"Best pair\" takes the " +
		"better of both in each round, for each quantity by itself.",
	"Clear: the same pods and nodes with plain routes and no translation.",
	"Requests are one byte each way over open connections, in an open loop: a latency begins when " +
		"its request is due. New connections send a byte each way and end with a reset.",
	"\"Added\" is the difference to clear in the same round, at least 0.001.",
	"CPU is the time of the whole machine, without idle time (/proc/stat), while the load runs.",
	"\"Again\" compares two samples of the same side in the same round: it is noise. A gate on a " +
		"ratio is judged only if that noise is below its margin in every round.",
	"h2load sends requests of HTTP/2 without TLS, pgbench the SELECT of a row by its key. Both keep " +
		"their connections. Those of h2load send evenly in turn. A transaction of pgbench begins when " +
		"it is due (-R).",
	"Memory is of veild and veil-wg, or of the proxies. Connections of all rounds stay open.",
	"All parties share the machine's CPUs, so wake-ups count more than between machines.",
}

// latencies returns a table with the latencies and CPU times of the groups.
func (s *run) latencies() report.Table {
	t := report.Table{Title: "Latency and CPU",
		Note: "P50 in µs, ratios to clear, and what is added to clear. CPU is what is added for " +
			"10,000 operations. All are medians of the rounds.",
		Head: []string{"", "clear", "Kubeveil", "haproxy pair", "pair in Go", "added", "to best pair",
			"P99 to best pair", "CPU, ms", "to best pair"}}
	groups := []string{}
	for _, l := range s.loads() {
		groups = append(groups, partRequests+"_"+l.name())
	}
	for _, g := range append(groups, groupFixed, toolGroup(partH2load), toolGroup(partPgbench)) {
		first, added := s.Result.Find(g+"_"+laneEngine, 0), s.Result.Find(g+"_added", 0)
		if first == nil || added == nil {
			continue
		}
		spent := "–" // tools do not measure it
		if cpu := s.Result.Find(g+"_added"+suffixCPU, 0); cpu != nil {
			spent = bench.Count.Format(cpu.Ours.Median)
		}
		t.Rows = append(t.Rows, []string{title(g), bench.Count.Format(first.Base.Median),
			s.RatioText(g + "_" + laneEngine), s.RatioText(g + "_" + laneHAProxy),
			s.RatioText(g + "_" + laneGo),
			bench.Count.Format(added.Ours.Median), s.RatioText(g + "_added"),
			s.RatioText(g + "_engine_to_pair_p99"), spent, s.RatioText(g + "_added" + suffixCPU)})
	}
	return t
}

// rates returns a table with the connections per second.
func (s *run) rates() report.Table {
	t := report.Table{Title: "New connections per second", Note: "Ratios to clear; more is better.",
		Head: []string{"", "clear, /s", "Kubeveil", "haproxy pair", "pair in Go", "to best pair"}}
	if c := s.Result.Find(groupNew+"_"+laneEngine, 0); c != nil {
		t.Rows = [][]string{{title(groupNew), bench.Count.Format(c.Base.Median),
			s.RatioText(groupNew + "_" + laneEngine), s.RatioText(groupNew + "_" + laneHAProxy),
			s.RatioText(groupNew + "_" + laneGo), s.RatioText(groupNew + "_engine_to_pair")}}
	}
	return t
}

// held returns a table with the memory of connections.
func (s *run) held() report.Table {
	t := report.Table{Title: "Memory of connections",
		Note: "Growth of the resident memory of all processes that carry the connections, on both " +
			"nodes: least and most of the rounds.",
		Head: []string{"", fmt.Sprintf("MiB for %d more connections", s.Held), "least", "most"}}
	for _, l := range laneNames {
		if c := s.Result.Find(partMemory+"_"+l, 0); c != nil {
			t.Rows = append(t.Rows, []string{laneTitles[l], bench.Count.Format(c.Ours.Median),
				bench.Count.Format(c.Ours.Min), bench.Count.Format(c.Ours.Max)})
		}
	}
	return t
}
