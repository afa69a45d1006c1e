package policy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/load"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
)

// Suite is its name in gates.json.
const Suite = "bench-policy"

// part is a group of cases, whose names begin with its name.
type part struct {
	name string
	run  func(*suite, context.Context) error
}

var parts = []part{
	{"size", (*suite).size},
	{"change", (*suite).changes},
	{"revoke", (*suite).revoke},
	{"add", (*suite).add},
	{"connections", (*suite).connections},
	{"tenant", (*suite).tenant},
	{"read", (*suite).read},
}

// Parts are the names of the parts, in the order in which they are run.
func Parts() (names []string) {
	for _, p := range parts {
		names = append(names, p.name)
	}
	return names
}

// Options are what Run measures.
type Options struct {
	Root     string
	Rounds   int
	Parts    []string
	Progress func(format string, args ...any)
	// scales are those of the gates where they are nil.
	scales *scales
}

// scales are how much is measured.
type scales struct {
	large, node                 scale
	changes, edits, connections int
	// opened connections are those of the fast path.
	opened int
	// bytes and short connections are those of a turn of a lane; turns are those of a round.
	bytes, short, turns int
	// swollen objects of the largest size, of one kind at a time, are read beside so many pods.
	swollen, readPods int
	// lines and selectors are those of one tenant. At least so many pods are attached beside, and
	// what is idle is watched for so long.
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
	if len(o.Parts) == 0 {
		return errors.New("no part is chosen")
	}
	for _, p := range o.Parts {
		if !slices.Contains(Parts(), p) {
			return fmt.Errorf("part %q: want some of %s", p, strings.Join(Parts(), ","))
		}
	}
	return nil
}

// suite is a run.
type suite struct {
	Options
	scales scales
	result *bench.Result
	notes  []string
}

// Run measures. The report is there, with what was measured, whenever measuring began, also with an
// error. Missed gates are no error. It needs root.
func Run(ctx context.Context, o Options) (*report.Report, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	s := &suite{Options: o, scales: ofGates}
	if o.scales != nil {
		s.scales = *o.scales
	}
	var err error
	if s.result, err = bench.New(bench.Namespaces, o.Root); err != nil {
		return nil, err
	}
	if err := s.lookAround(ctx); err != nil {
		return nil, err
	}
	err = s.measure(ctx)
	return s.report(), errors.Join(err, s.judge())
}

// lookAround notes how busy the machine is with other things.
func (s *suite) lookAround(ctx context.Context) error {
	cores, err := load.Others(ctx, time.Second)
	if err != nil {
		return err
	}
	text := fmt.Sprintf("Before the run others kept %.2f of %d cores busy.", cores, s.result.CPUs)
	if cores > 0.1*float64(s.result.CPUs) {
		text += " That is too much: figures and gates are not to be trusted."
	}
	s.notes = append(s.notes, text)
	s.Progress("%s", text)
	return nil
}

// measure runs the parts. One that cannot be measured is a missed gate, and the others still run.
func (s *suite) measure(ctx context.Context) error {
	for _, p := range parts {
		if !slices.Contains(s.Parts, p.name) {
			continue
		}
		s.Progress("part %s", p.name)
		err := p.run(s, ctx)
		if ctx.Err() != nil {
			return fmt.Errorf("part %s: %w", p.name, context.Cause(ctx))
		}
		if err != nil {
			s.Progress("part %s failed: %v", p.name, err)
			s.result.Gates = append(s.result.Gates,
				bench.Gate{Name: "part " + p.name, Want: "measured", Got: err.Error()})
		}
	}
	return nil
}

// judge adds the gates of gates.json, but for those of parts that were not chosen.
func (s *suite) judge() error {
	gates, err := bench.Judge(s.result, Suite)
	for _, g := range gates {
		if part, _, _ := strings.Cut(g.Name, "_"); slices.Contains(s.Parts, part) {
			s.result.Gates = append(s.result.Gates, g)
		}
	}
	return err
}

// one adds a case.
func (s *suite) one(name string, unit bench.Unit, values []float64) {
	s.result.Cases = append(s.result.Cases,
		bench.Case{Name: name, Unit: unit, Ours: bench.Summarize(values)})
}

// values are those of each round, by the name of the case.
type values map[string][]float64

func (v values) add(name string, x float64) { v[name] = append(v[name], x) }

// addBoth adds the median and the 99th percentile of a round.
func (v values) addBoth(name string, all []float64) {
	v.add(name, bench.Quantile(all, 0.5))
	v.add(name+suffixP99, bench.Quantile(all, 0.99))
}

func (v values) last(name string) float64 { return v[name][len(v[name])-1] }

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
