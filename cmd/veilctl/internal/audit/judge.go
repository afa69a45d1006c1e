package audit

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/audit/result"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/cluster"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/preflight"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/pkg/connectivity"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// judgeStatus returns the section about the status of the nodes. A node that did not answer is bad.
func judgeStatus(r cluster.Report, err error) *result.Section {
	s := &result.Section{Name: "status", Title: "Status of the nodes",
		Text: "What veilctl status shows: whether the node's tunnels, guard and policies work.",
		Head: []string{"node", "veild", "tunnel", "peers that answer", "what is wrong"}}
	if err != nil {
		s.Lacks("all nodes", err.Error())
		return s
	}

	for _, n := range r.Nodes {
		row := result.Row{Verdict: result.Good, Cells: []string{n.Node, n.Version, n.Backend,
			fmt.Sprintf("%d of %d", n.PeersUp, n.Peers), strings.Join(slices.Concat(n.Problems,
				n.Notes), "\n")}}
		switch {
		case !n.Well:
			row.Verdict = result.Bad
		case len(n.Notes) > 0:
			row.Verdict = result.Note
		}
		if !n.Answered {
			row.Cells[3], row.Why = "", cmp.Or(row.Cells[4], "its veild does not answer")
		}
		s.Rows = append(s.Rows, row)
	}
	if len(s.Rows) == 0 {
		s.Lacks("all nodes", "the cluster has no node")
	}
	return s
}

// addBadStart adds to the status at the end of the run the nodes that were bad at its beginning and
// are not any more. What was wrong for a part of the run is wrong.
func addBadStart(s, beginning *result.Section) {
	for _, row := range beginning.Rows {
		if row.Verdict != result.Bad || slices.ContainsFunc(s.Rows, func(now result.Row) bool {
			return now.Verdict == result.Bad && now.Cells[0] == row.Cells[0]
		}) {
			continue
		}
		row.Cells = slices.Clone(row.Cells)
		row.Cells[4] = "at the beginning: " + row.Cells[4]
		s.Rows = append(s.Rows, row)
	}
}

// judgeCheck returns the section with the findings of check. Missing rights of the user are only a
// Note, because an auditor does not need the rights for an installation.
func judgeCheck(f preflight.Facts) *result.Section {
	s := &result.Section{Name: "check", Title: "Fitness of the cluster",
		Text: "What veilctl check finds: the API server, ranges, kernels, other network plugins.",
		Head: []string{"check", "found", "what to do"}}
	for _, finding := range preflight.Judge(f) {
		v := map[preflight.Level]result.Verdict{preflight.OK: result.Good,
			preflight.Warning: result.Note, preflight.Error: result.Bad}[finding.Level]
		if finding.Check == "rights" && v == result.Bad {
			v = result.Note
		}
		s.Add(v, finding.Check, finding.Found, finding.Do)
	}
	for _, what := range slices.Sorted(maps.Keys(f.Unread)) {
		s.Lacks(what, f.Unread[what])
	}
	return s
}

// flowSummary is the last line of veilctl flows -o json.
type flowSummary struct {
	// Count counts all connections by class, including those that were not printed.
	Count map[string]int `json:"count"`
	// Alarms counts connections between pods and the cluster that are in clear.
	Alarms int `json:"alarms"`
	// Notes are sentences about what cannot be seen on the node.
	Notes []string `json:"notes"`
}

// flowTitles are the classes as people read them.
var flowTitles = map[string]string{
	"tunnel": "in the tunnel", "local": "stays on the node", "outside": "outside, in clear",
	"host": "host to host, in clear", "refused": "refused",
}

// judgeFlows returns the section about connections by class. A connection in clear between a pod
// and the cluster is bad.
func judgeFlows(answers []lineAnswer) *result.Section {
	s := &result.Section{Name: "flows", Title: "Flows by class",
		Text: "What the command veilctl flows shows at the end of the run. Flows between hosts, " +
			"and flows to the outside, are in clear: they are the documented exceptions.",
		Head: []string{"class or node", "flows", "on nodes", "remark"}}
	for i := range answers {
		readFlows(s, &answers[i])
	}

	sum := count(s, answers)
	for _, class := range slices.Sorted(maps.Keys(sum)) {
		v := result.Good
		if class == "outside" || class == "host" {
			v = result.Note
		}
		s.Add(v, cmp.Or(flowTitles[class], class), fmt.Sprint(sum[class].lines),
			fmt.Sprint(sum[class].nodes), "")
	}
	return s
}

// readFlows adds rows for the summary of a node, and replaces the counted lines by the counts of
// the summary. An answer without a summary is incomplete.
func readFlows(s *result.Section, a *lineAnswer) {
	var sum flowSummary
	if json.Unmarshal(a.summary, &sum) == nil {
		a.counts = flowCounts(sum.Count)
	} else if a.err == "" {
		a.err = "its answer has no summary, so it was cut off"
	}
	alarms := max(sum.Alarms, a.alarms)
	if alarms > 0 || a.err == "" && a.status == verb.ExitWrong {
		s.Rows = append(s.Rows, result.Row{Verdict: result.Bad, Word: "in clear",
			Cells: []string{a.node, fmt.Sprint(alarms), "", "connections of pods with the " +
				"cluster are in clear, which no exception allows"}})
	}
	if len(sum.Notes) > 0 {
		why := strings.Join(sum.Notes, " ")
		s.Rows = append(s.Rows, result.Row{Verdict: result.Note,
			Cells: []string{a.node, "", "", why}, Why: why})
	}
}

// flowCounts returns the counts of the classes that have a title. A node that was taken over may
// invent classes, or subtract from what other nodes counted.
func flowCounts(answer map[string]int) map[string]int {
	known := map[string]int{}
	for class, n := range answer {
		if flowTitles[class] == "" || n < 0 {
			class, n = overflowKind, max(n, 0)
		}
		known[class] += n
	}
	return known
}

// counted is how many flows (or samples of drops) have one class (or reason), and on how many
// nodes.
type counted struct{ lines, nodes int }

// count adds up the answers of all nodes, by class or reason. It adds the samples to
// s, and a row for each node without a complete answer.
func count(s *result.Section, answers []lineAnswer) map[string]counted {
	sum := map[string]counted{}
	for _, a := range answers {
		if a.err != "" {
			s.Lacks(a.node, a.err)
		}
		for _, kind := range slices.Sorted(maps.Keys(a.counts)) {
			n := a.counts[kind]
			if _, known := sum[kind]; !known && len(sum) >= maxKinds {
				kind = overflowKind
			}
			sum[kind] = counted{sum[kind].lines + n, sum[kind].nodes + 1}
		}
		s.AddSamples(a.samples)
	}
	return sum
}

// judgeDrops returns the section about dropped packets. Its numbers are the differences between the
// counters of two reports of status.
func judgeDrops(answers []lineAnswer, before, after cluster.Report) *result.Section {
	s := &result.Section{Name: "drops", Title: "Dropped packets by reason",
		Text: "The counters cover all packets, on nodes that answered both at the beginning and at " +
			"the end. Counters of veil-wg begin with its process, and have no samples. An empty " +
			"cell means that no counter was read. The command veilctl drops shows samples of some " +
			"packets. A dropped packet did not leave in clear, but some program or rule tried to " +
			"send it in clear, or the packet was not allowed.",
		Head: []string{"reason or node", "dropped in this time", "dropped since the node started",
			"sampled", "remark"}}

	sampled := count(s, answers)
	c := countDrops(before, after)
	for _, n := range after.Nodes {
		if n.Status != nil && n.Status.DropSamples != nil && n.Status.DropSamples.Problem != "" {
			why := "some dropped packets are only counted: " + n.Status.DropSamples.Problem
			s.Rows = append(s.Rows, result.Row{Verdict: result.Note,
				Cells: []string{n.Node, "", "", "", why}, Why: why})
		}
	}
	reasons := maps.Clone(c.total)
	for reason := range sampled {
		reasons[reason] = c.total[reason]
	}
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		total, lines := c.total[reason], sampled[reason].lines
		if total == 0 && lines == 0 {
			continue
		}
		v, remark := result.Note, ""
		if c.harmless[reason] {
			v, remark = result.Good, "every pod sends such packets"
		}
		if c.during[reason] == 0 && lines == 0 {
			v = result.Good
		}
		during, all := fmt.Sprint(c.during[reason]), fmt.Sprint(total)
		if total < uint64(lines) { // A node may send samples and no counters.
			during, all, remark = "", "", "a node sent samples and no counter"
		}
		s.Add(v, reason, during, all, fmt.Sprint(lines), remark)
	}
	return s
}

// judgeWalk returns the section about the kinds of flow that connectivity sent.
func judgeWalk(r connectivity.Report, err error) *result.Section {
	s := newWalk()
	for _, f := range r.Flows {
		v := result.Good
		switch {
		case !f.OK:
			v = result.Bad
		case f.Verdict == connectivity.HostToHost || f.Verdict == connectivity.Outside:
			v = result.Note
		}
		s.Add(v, f.Class, f.Way.String(), string(f.Verdict), string(f.Promised), f.Error)
	}
	for _, skipped := range r.Skipped {
		s.Lacks(skipped.What, skipped.Why)
	}
	if err != nil {
		s.Lacks("the walk", err.Error())
	}
	return s
}

func newWalk() *result.Section {
	return &result.Section{Name: "connectivity", Title: "Every kind of flow, sent and watched",
		Text: "What veilctl connectivity saw of payloads that it sent between two nodes.",
		Head: []string{"flow", "way", "observed", "promised", "remark"}}
}

// dropCounts holds the numbers of dropped packets of all nodes by reason.
type dropCounts struct {
	// during counts the packets that were dropped between the two answers of a node, for nodes that
	// answered twice. total counts all packets.
	during, total map[string]uint64
	harmless      map[string]bool
}

func countDrops(before, after cluster.Report) dropCounts {
	was := map[string]map[string]uint64{}
	for _, n := range before.Nodes {
		if n.Status != nil {
			was[n.Node] = dropsOf(n.Status)
		}
	}

	c := dropCounts{map[string]uint64{}, map[string]uint64{}, map[string]bool{}}
	for _, n := range after.Nodes {
		then, known := was[n.Node]
		for reason, packets := range dropsOf(n.Status) {
			name := reason
			if _, counted := c.total[reason]; !counted && len(c.total) >= 2*maxKinds {
				name = overflowKind
			}
			c.total[name] = addCapped(c.total[name], packets)
			if known && packets >= then[reason] {
				c.during[name] = addCapped(c.during[name], packets-then[reason])
			}
		}
		if n.Status == nil {
			continue
		}
		for _, d := range n.Status.Guard.Drops {
			if d.Harmless && c.total[result.Clean(d.Name)] > 0 {
				c.harmless[result.Clean(d.Name)] = true
			}
		}
	}
	return c
}

// addCapped returns the sum, or the largest number: a node may send any number.
func addCapped(a, b uint64) uint64 {
	if sum := a + b; sum >= a {
		return sum
	}
	return math.MaxUint64
}

// dropsOf returns all dropped packets of a node by reason. A reason is a drop reason of samples, or
// a reason of veil-wg with its name before it.
func dropsOf(status *telemetry.Status) map[string]uint64 {
	drops := map[string]uint64{}
	if status == nil {
		return drops
	}
	add := func(reason string, packets uint64) {
		if reason = result.Clean(reason); len(drops) < 2*maxKinds || drops[reason] > 0 {
			drops[reason] = addCapped(drops[reason], packets)
		}
	}

	for _, d := range status.Guard.Drops[:min(len(status.Guard.Drops), maxKinds)] {
		add(d.Name, d.Packets)
	}
	if c := status.Connections; c != nil {
		add("pod_connections", c.Dropped)
	}
	if s := status.Services; s != nil {
		for _, r := range s.Refused[:min(len(s.Refused), maxKinds)] {
			add("service_"+r.What, r.Count)
		}
	}
	if p := status.Policy; p != nil {
		for _, reason := range slices.Sorted(maps.Keys(p.Drops)) {
			add(reason, p.Drops[reason])
		}
	}
	for _, d := range status.Devices[:min(len(status.Devices), maxKinds)] {
		for _, reason := range slices.Sorted(maps.Keys(d.Drops)) {
			add("veil-wg "+reason, d.Drops[reason])
		}
	}
	return drops
}
