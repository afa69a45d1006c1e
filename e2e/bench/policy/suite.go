package policy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench/parts"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
)

// Suite is its name in gates.json.
const Suite = "bench-policy"

var all = []parts.Part[*run]{
	{Name: "size", Run: (*run).size},
	{Name: "change", Run: (*run).changes},
	{Name: "revoke", Run: (*run).revoke},
	{Name: "add", Run: (*run).add},
	{Name: "connections", Run: (*run).connections},
	{Name: "tenant", Run: (*run).tenant},
	{Name: "read", Run: (*run).read},
}

// Parts are the names of the parts, in the order in which they are run.
func Parts() []string { return parts.Names(all) }

// Options choose the measurements.
type Options struct {
	Root     string
	Rounds   int
	Parts    []string
	Progress func(format string, args ...any)
	// scales are the sizes of the measurements; nil means the sizes that the gates are for.
	scales *scales
}

// scales are the sizes of the measurements.
type scales struct {
	large, node                 scale
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
	large:   scale{nodes: 100, pods: 100, policies: 1000, rules: 100},
	node:    scale{nodes: 100, pods: 100, policies: 100, rules: 100},
	changes: 300, edits: 100, connections: 100000,
	opened: 50000,
	bytes:  2e9, short: 10000, turns: 5,
	swollen: 20, readPods: 1000,
	lines: 16384, selectors: 16000, adds: 40, idle: time.Minute,
}

// Check returns what is wrong with the options.
func (o Options) Check() error {
	if o.Rounds < 1 {
		return fmt.Errorf("%d rounds: want at least 1", o.Rounds)
	}
	return parts.Check(o.Parts, Parts())
}

// run is one run of the suite.
type run struct {
	Options
	scales scales
	result *bench.Result
	parts  parts.Run
}

// Run measures. It returns a report with the results so far whenever measuring began, also beside
// an error. Missed gates are not an error. It needs root.
func Run(ctx context.Context, o Options) (*report.Report, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	s := &run{Options: o, scales: ofGates}
	if o.scales != nil {
		s.scales = *o.scales
	}
	var err error
	if s.result, err = bench.New(bench.Namespaces, o.Root); err != nil {
		return nil, err
	}
	s.parts = parts.Run{Chosen: o.Parts, Result: s.result, Progress: o.Progress}
	if err := s.parts.LookAround(ctx, time.Second); err != nil {
		return nil, err
	}
	err = parts.Measure(ctx, &s.parts, s, all)
	return s.report(), errors.Join(err, s.parts.Judge(Suite, nil))
}

// one adds a case.
func (s *run) one(name string, unit bench.Unit, values []float64) {
	s.result.Cases = append(s.result.Cases,
		bench.Case{Name: name, Unit: unit, Ours: bench.Summarize(values)})
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
