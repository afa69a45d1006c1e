package policy

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench/policy/idle"
	"github.com/kubeveil/kubeveil/e2e/bench/policy/lane"
	"github.com/kubeveil/kubeveil/e2e/bench/policy/largeobject"
	"github.com/kubeveil/kubeveil/e2e/bench/policy/world"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

// Suite is the name of this suite in gates.json.
const Suite = "bench-policy"

// benchmark has the parts in the order in which they run.
var benchmark = suite.Suite[*run]{Name: Suite, Look: time.Second, Parts: []suite.Part[*run]{
	{Name: "size", Run: (*run).size},
	{Name: "change", Run: (*run).changes},
	{Name: "revoke", Run: (*run).revoke},
	{Name: "add", Run: (*run).add},
	{Name: "connections", Run: (*run).connections},
	{Name: "tenant", Run: (*run).tenant},
	{Name: "read", Run: (*run).read},
}}

// Parts returns the names of the parts in the order in which they run.
func Parts() []string { return benchmark.Names() }

// scales holds the sizes of the measurements.
type scales struct {
	// large is the cluster of part size and of the large node in part change. node is the cluster
	// of the other measurements.
	large, node world.Scale
	// changes and edits are the numbers of changed pods and policies per round. connections is the
	// number of tracked connections in part revoke.
	changes, edits, connections int
	// opened is the number of connections on the fast path.
	opened int
	// bytes and short are the number of bytes and of short connections per turn of a lane. turns is
	// the number of turns per round.
	bytes, short, turns int
	// swollen is the number of large objects in part read, of one kind at a time. readPods is the
	// number of other pods.
	swollen, readPods int
	// lines and selectors are the sizes of the policies in part tenant. adds is the minimum number
	// of pods that are attached meanwhile. idle is the duration of the measurement of idle CPU.
	lines, selectors, adds int
	idle                   time.Duration
}

// ofGates holds the scales for which the limits in gates.json apply.
var ofGates = scales{
	large:   world.Scale{Nodes: 100, Pods: 100, Policies: 1000, Rules: 100},
	node:    world.Scale{Nodes: 100, Pods: 100, Policies: 100, Rules: 100},
	changes: 300, edits: 100, connections: 100000,
	opened: 50000,
	bytes:  2e9, short: 10000, turns: 5,
	swollen: 20, readPods: 1000,
	lines: 16384, selectors: 16000, adds: 40, idle: time.Minute,
}

// Child reports whether Run started this process as a child. If so, it runs the child and returns
// the exit status. In other processes it does nothing. A program that calls Run must call Child
// first.
func Child() (status int, is bool) { return suite.Child(Suite, idle.Watch) }

// Check returns an error if the choice is not valid.
func Check(c suite.Choice) error { return benchmark.Check(c) }

// run is one run of the suite.
type run struct {
	suite.Choice
	*suite.Run
	scales scales
}

// Run measures the chosen parts and returns the report. If an error ends the run after measuring
// began, Run returns it beside a report of the results so far. A missed gate is not an error. Run
// needs root.
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

// connections measures the cost of policies for connections.
func (s *run) connections(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp(memory, folderPrefix)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	return lane.Run(ctx, s.Choice, s.Run,
		lane.Sizes{Bytes: s.scales.bytes, Short: s.scales.short, Turns: s.scales.turns}, dir)
}

// read measures veild in a cluster with large objects.
func (s *run) read(ctx context.Context) error {
	return largeobject.Run(ctx, s.Choice, s.Run,
		largeobject.Sizes{Large: s.scales.swollen, Pods: s.scales.readPods})
}

// addAll adds cases of a unit with the values of v.
func (s *run) addAll(v suite.Values, unit bench.Unit, names ...string) {
	for _, name := range names {
		s.Add(name, "", unit, v[name]...)
	}
}

// addBoth adds the median and the 99th percentile of the values of one round to v.
func addBoth(v suite.Values, name string, all []float64) {
	v.Add(name, bench.Quantile(all, 0.5))
	v.Add(name+suffixP99, bench.Quantile(all, 0.99))
}
