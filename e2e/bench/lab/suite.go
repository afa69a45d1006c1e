package lab

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/pkg/bench/report"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

// Suite is its name in gates.json.
const Suite = "bench-lab"

// partChurn is the second half of the part scale. It is a part for a look at it alone.
const partChurn = "churn"

// benchmark has the parts, in the order in which they are run. Names of its cases do not begin with
// a part.
var benchmark = suite.Suite[*run]{Name: Suite, Whole: true, Look: 2 * time.Second,
	Parts: []suite.Part[*run]{
		{Name: "bare", Run: (*run).bare},
		{Name: "capped", Run: (*run).capped},
		{Name: "add", Run: (*run).add},
		{Name: "scale", Run: (*run).scale},
		{Name: partChurn, Run: (*run).churn},
	}}

// Rounds is the number of rounds of a run, QuickRounds of a quick one.
const (
	Rounds      = 5
	QuickRounds = 2
)

// Parts are the names of the parts of a whole run, in the order in which they are run.
func Parts() []string {
	return slices.DeleteFunc(benchmark.Names(), func(name string) bool { return name == partChurn })
}

// Check returns what is wrong with the choice.
func Check(c suite.Choice) error { return benchmark.Check(c) }

// run is one run of the suite.
type run struct {
	suite.Choice
	*suite.Run
	settings
	// bin is the folder of the built programs.
	bin string
}

// settings are how long and how often.
type settings struct {
	// tcp and probe are the seconds of a TCP run, without its first, and of one rate of UDP.
	tcp, probe time.Duration
	// adds is the number of ADDs whose median is one sample. pods is the number of pods that
	// workers add at the same time.
	adds, pods int
	// nodes known in the part scale; idle is for how long it is watched.
	nodes int
	idle  time.Duration
	// attached are the pods of churn, churned is for how long it is watched.
	attached int
	churned  time.Duration
}

var (
	full = settings{tcp: 3 * time.Second, probe: time.Second, adds: 11, pods: 200,
		nodes: 1000, idle: 30 * time.Second,
		attached: 250, churned: 2 * time.Minute}
	short = settings{tcp: time.Second, probe: time.Second, adds: 5, pods: 24,
		nodes: 1000, idle: 10 * time.Second,
		attached: 250, churned: 30 * time.Second}
)

// Run measures; quick takes fewer seconds, for development. It returns a report with the results so
// far whenever measuring began, also beside an error. Missed gates are not an error. It needs root
// and the programs of make build.
func Run(ctx context.Context, c suite.Choice, quick bool) (*report.Report, error) {
	return benchmark.Run(ctx, c, func(_ context.Context, r *suite.Run) (*run, error) {
		c.Progress("%s", r.Result.Caveat())
		r.Labels = labels
		s := &run{Choice: c, Run: r, settings: full, bin: filepath.Join(c.Root, "out/bin")}
		if quick {
			s.settings = short
		}
		return s, nil
	})
}

// Report has the notes of all parts.
func (r *run) Report() *report.Report {
	return &report.Report{
		Title: "Kubeveil in the namespace lab: speed and size",
		Lead: "Each comparison was measured in one run, both sides directly after one another, " +
			"in random order.",
		Notes: slices.Concat(notes, r.Notes, []string{
			fmt.Sprintf("%d rounds, order drawn with seed %d.", r.Rounds, r.Seed)}),
	}
}
