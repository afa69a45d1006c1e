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

// Suite is the name of this suite in gates.json.
const Suite = "bench-lab"

// partChurn is the name of the second half of part scale, which can also be chosen alone.
const partChurn = "churn"

// benchmark has the parts in the order in which they run. Whole is set because the names of cases
// do not begin with the name of a part.
var benchmark = suite.Suite[*run]{Name: Suite, Whole: true, Look: 2 * time.Second,
	Parts: []suite.Part[*run]{
		{Name: "bare", Run: (*run).bare},
		{Name: "capped", Run: (*run).capped},
		{Name: "between", Run: (*run).between},
		{Name: "add", Run: (*run).add},
		{Name: "scale", Run: (*run).scale},
		{Name: partChurn, Run: (*run).churn},
	}}

// Rounds is the number of rounds of a full run, QuickRounds the number of a quick run.
const (
	Rounds      = 5
	QuickRounds = 2
)

// Parts returns the names of the parts of a whole run, in the order in which they run. Churn is not
// among them, because part scale includes it.
func Parts() []string {
	return slices.DeleteFunc(benchmark.Names(), func(name string) bool { return name == partChurn })
}

// Check returns an error if the choice is not valid.
func Check(c suite.Choice) error { return benchmark.Check(c) }

// run is one run of the suite.
type run struct {
	suite.Choice
	*suite.Run
	settings
	// bin is the folder of the built programs.
	bin string
}

// settings holds durations and numbers of a run.
type settings struct {
	// tcp is the duration of a TCP sample, without a warm-up of a second. probe is the time of
	// sending at one rate of UDP.
	tcp, probe time.Duration
	// adds is the number of ADDs whose median is one sample. pods is the number of pods that
	// the workers add.
	adds, pods int
	// nodes is the number of fake nodes. idle is the duration of the measurement of idle CPU.
	nodes int
	idle  time.Duration
	// attached is the number of pods in part churn. churned is the duration of its measurement.
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

// Run measures the chosen parts and returns the report. With quick, samples are shorter, for
// development. If an error ends the run after measuring began, Run returns it beside a report of
// the results so far. A missed gate is not an error. Run needs root and the programs of make build.
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

// Report returns the report with the notes of all parts.
func (r *run) Report() *report.Report {
	return &report.Report{
		Title: "Kubeveil in the namespace lab: speed and size",
		Lead: "Each comparison was measured in one run, both sides directly after one another, " +
			"in random order.",
		Notes: slices.Concat(notes, r.Notes, []string{
			fmt.Sprintf("%d rounds, order drawn with seed %d.", r.Rounds, r.Seed)}),
	}
}
