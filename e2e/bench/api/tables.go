package api

import (
	"fmt"

	"github.com/kubeveil/kubeveil/e2e/bench/api/client"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
)

// failures returns a table with a row for each fault and kind of client.
func (s *run) failures() report.Table {
	t := report.Table{Title: "API servers that fail: how long clients with a connection wait",
		Note: "Milliseconds until the first good request, or the first event of a watch. The " +
			"worst is over all clients and all times.",
		Head: []string{"fault", "client", "median", "worst", "over IPv6: median", "worst",
			"events missed"}}

	for _, f := range faults {
		for kind := range heldKinds() {
			row := []string{f.title, titleOf(kind)}
			missed, measured := "", false
			for _, part := range []string{partFailure, partFailure6} {
				c := s.Result.Find(caseFailure(part, f, kind), 0)
				if c == nil {
					row = append(row, "–", "–")
					continue
				}
				measured = true
				row = append(row, fmt.Sprintf("%.0f", c.Ours.Median), fmt.Sprintf("%.0f", c.Ours.Max))
				if m := s.Result.Find(caseFailure(part, f, kind)+suffixMissed, 0); m != nil {
					missed = joined(missed, fmt.Sprintf("%.0f", m.Ours.Median))
				}
			}
			if measured {
				t.Rows = append(t.Rows, append(row, missed))
			}
		}
	}
	return t
}

func joined(a, b string) string {
	if a == "" {
		return b
	}
	return a + " · " + b
}

// titleOf returns the title of a kind of client.
func titleOf(kind string) string {
	for _, k := range client.Kinds {
		if k.Name == kind {
			return k.Title
		}
	}
	return "a watch"
}

// others returns a table with a row for each other case of the parts that use a lab.
func (s *run) others() report.Table {
	t := report.Table{Title: "API servers in trouble, restarted, and probed",
		Note: "The last column is the same server without nodes that probe it. A server without " +
			"connections counts as a server with one connection.",
		Head: []string{"what", "measured", "without probes"}}
	names := []string{caseHang + suffixWorst, caseHangClosed}
	for _, trouble := range troubles {
		names = append(names, caseWell(trouble))
	}
	names = append(names, caseSpread, caseSpreadBefore, caseRestartClosed, caseRestartDone,
		caseRestartLost,
		caseProbersP99, caseProbersCPU, caseProbersMemory, caseProbersSilent)

	for _, name := range names {
		c := s.Result.Find(name, 0)
		if c == nil {
			continue
		}
		without := ""
		if c.Base != nil {
			without = c.Unit.Format(c.Base.Median)
		}
		t.Rows = append(t.Rows, []string{s.Labels[name], value(c), without})
	}
	return t
}

// value returns the median of a case as text. A count that is an integer has all its digits.
func value(c *bench.Case) string {
	if c.Unit == bench.Count && c.Ours.Median == float64(int(c.Ours.Median)) {
		return fmt.Sprintf("%.0f", c.Ours.Median)
	}
	return c.Unit.Format(c.Ours.Median)
}
