package policy

import (
	"context"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench/policy/world"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

// Suite is its name in gates.json.
const Suite = "bench-policy"

// benchmark has the parts, in the order in which they are run.
var benchmark = suite.Suite[*run]{Name: Suite, Look: time.Second, Parts: []suite.Part[*run]{
	{Name: "size", Run: (*run).size},
	{Name: "change", Run: (*run).changes},
	{Name: "revoke", Run: (*run).revoke},
	{Name: "add", Run: (*run).add},
	{Name: "connections", Run: (*run).connections},
	{Name: "tenant", Run: (*run).tenant},
	{Name: "read", Run: (*run).read},
}}

// Parts are the names of the parts, in the order in which they are run.
func Parts() []string { return benchmark.Names() }

// scales are the sizes of the measurements.
type scales struct {
	large, node                 world.Scale
	changes, edits, connections int
	// opened is the number of connections on the fast path.
	opened int
	// bytes and short connections are measured per turn of a lane; turns is the number of turns per
	// round.
	bytes, short, turns int
	// swollen objects of the largest size, of one kind at a time, are read beside so many pods.
	swollen, readPods int
	// lines and selectors belong to one tenant. At least adds pods are attached beside it, and the
	// idle node is watched for the time idle.
	lines, selectors, adds int
	idle                   time.Duration
}

// ofGates are the scales that the gates are for.
var ofGates = scales{
	large:   world.Scale{Nodes: 100, Pods: 100, Policies: 1000, Rules: 100},
	node:    world.Scale{Nodes: 100, Pods: 100, Policies: 100, Rules: 100},
	changes: 300, edits: 100, connections: 100000,
	opened: 50000,
	bytes:  2e9, short: 10000, turns: 5,
	swollen: 20, readPods: 1000,
	lines: 16384, selectors: 16000, adds: 40, idle: time.Minute,
}

// Check returns what is wrong with the choice.
func Check(c suite.Choice) error { return benchmark.Check(c) }

// run is one run of the suite.
type run struct {
	suite.Choice
	*suite.Run
	scales scales
}

// Run measures. It returns a report with the results so far whenever measuring began, also beside
// an error. Missed gates are not an error. It needs root.
func Run(ctx context.Context, c suite.Choice) (*report.Report, error) {
	return runAt(ctx, c, ofGates)
}

// runAt is Run with other sizes.
func runAt(ctx context.Context, c suite.Choice, sizes scales) (*report.Report, error) {
	return benchmark.Run(ctx, c, func(_ context.Context, r *suite.Run) (*run, error) {
		s := &run{Choice: c, Run: r, scales: sizes}
		s.Labels = s.scales.labels()
		return s, nil
	})
}

// values are the values of each round, by the name of the case.
type values map[string][]float64

func (v values) add(name string, x float64) { v[name] = append(v[name], x) }

// addBoth adds the median and the 99th percentile of a round.
func (v values) addBoth(name string, all []float64) {
	v.add(name, bench.Quantile(all, 0.5))
	v.add(name+suffixP99, bench.Quantile(all, 0.99))
}

func (v values) last(name string) float64 { return v[name][len(v[name])-1] }

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
