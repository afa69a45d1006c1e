package api

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench/api/client"
	"github.com/kubeveil/kubeveil/e2e/bench/api/faultlab"
	"github.com/kubeveil/kubeveil/e2e/bench/api/testbed"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

// Suite is its name in gates.json.
const Suite = "bench-api"

// benchmark has the parts, in the order in which they are run.
var benchmark = suite.Suite[*run]{Name: Suite, Look: 2 * time.Second, Parts: []suite.Part[*run]{
	latency(partPod),
	latency(partHost),
	latency(partPod6),
	latency(partHost6),
	{Name: partFailure, Run: (*run).failure},
	{Name: partHang, Run: (*run).hang},
	{Name: partWell, Run: (*run).well},
	{Name: partProbers, Run: (*run).probers},
	{Name: partRestart, Run: (*run).restart},
	{Name: partFailure6, Run: (*run).failure6},
}}

// latency returns a part with rates and rounds.
func latency(name string) suite.Part[*run] {
	return suite.Part[*run]{Name: name, Run: func(s *run, ctx context.Context) error {
		return s.measure(ctx, name)
	}}
}

// Parts with rates and rounds, over IPv4 and over IPv6.
const (
	partPod   = "pod"
	partHost  = "host"
	partPod6  = "pod6"
	partHost6 = "host6"
)

// latencies are these parts.
var latencies = []string{partPod, partHost, partPod6, partHost6}

// Parts without rates and rounds. They have a lab.
const (
	partFailure  = "failure"
	partHang     = "hang"
	partWell     = "well"
	partProbers  = "probers"
	partRestart  = "restart"
	partFailure6 = "failure6"
)

// Parts are the names of the parts, in the order in which they are run.
func Parts() []string { return benchmark.Names() }

// Rates are the default rates, GET/s.
var Rates = []int{500, 1000, 2000}

// Options choose the measurements. The zero value is not valid.
type Options struct {
	// Choice has Rounds, which is how often each side is measured at each rate.
	suite.Choice
	// Sample is the duration of each measurement.
	Sample time.Duration
	// Rates are some numbers of GET/s.
	Rates []int
	// Faults is the number of times that each fault of parts failure, failure6 and hang happens.
	Faults int
	// Settle is the time in part restart after which connections are counted.
	Settle time.Duration
	// Probers is the number of nodes that probe a server in part probers, Steady the time of that
	// measurement.
	Probers int
	Steady  time.Duration
	// HAProxy is the path of haproxy.
	HAProxy string
}

// most is the highest rate that Options may have, mostProbers the highest number: each has two
// connections to one address, whose ports end.
const most, mostProbers = 20_000, 20_000

// Check returns what is wrong with the options.
func (o Options) Check() error {
	switch {
	case o.Faults < 1:
		return fmt.Errorf("%d faults: want at least 1", o.Faults)
	case o.Settle < 0:
		return fmt.Errorf("%v to settle: want no less than 0", o.Settle)
	case o.Probers < 1 || o.Probers > mostProbers:
		return fmt.Errorf("%d probers: want 1 to %d", o.Probers, mostProbers)
	case o.Steady < time.Second:
		return fmt.Errorf("probers for %v: want at least 1s", o.Steady)
	case o.Sample < 100*time.Millisecond:
		return fmt.Errorf("samples of %v: want at least 100ms", o.Sample)
	case len(o.Rates) == 0 || slices.Min(o.Rates) < 1 || slices.Max(o.Rates) > most:
		return fmt.Errorf("rates %v: want some from 1 to %d", o.Rates, most)
	case len(slices.Compact(slices.Sorted(slices.Values(o.Rates)))) < len(o.Rates):
		return fmt.Errorf("rates %v: want each once", o.Rates)
	}
	return benchmark.Check(o.Choice)
}

// overhead is the cost of a measurement besides its sample.
const overhead = warm + 700*time.Millisecond

// Estimate is about how long a run takes.
func (o Options) Estimate() time.Duration {
	took := map[string]time.Duration{
		partFailure:  time.Duration(len(faults)*o.Faults) * 15 * time.Second,
		partHang:     time.Duration(o.Faults) * 15 * time.Second,
		partWell:     faultlab.TroublesTake,
		partProbers:  3*time.Duration(o.Probers)*client.ProberPause + 2*o.Steady,
		partRestart:  time.Minute + o.Settle,
		partFailure6: time.Minute + time.Duration(len(faults)*o.Faults)*15*time.Second,
	}
	sum := 10 * time.Second
	for _, p := range o.Parts {
		d, inLab := took[p]
		if !inLab {
			d = time.Duration(len(sidesOf(p))*len(o.ratesOf(p))*o.Rounds) * (o.Sample + overhead)
		}
		sum += d
	}
	return sum
}

// ratesOf returns the rates of a part. Over IPv6 the first one is enough.
func (o Options) ratesOf(part string) []int {
	if part == partPod6 || part == partHost6 {
		return o.Rates[:1]
	}
	return o.Rates
}

// run is one run of the suite.
type run struct {
	Options
	*suite.Run
	ground *testbed.Testbed
	lab    *faultlab.Lab
}

// Run measures. It returns a report with the results so far whenever measuring began, also beside
// an error. Missed gates are not an error. It needs root, and a program that calls Child first.
func Run(ctx context.Context, o Options) (*report.Report, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	return benchmark.Run(ctx, o.Choice, func(_ context.Context, r *suite.Run) (*run, error) {
		return &run{Options: o, Run: r}, nil
	})
}

// Close removes the lab and the namespaces.
func (s *run) Close() error {
	err := s.closeLab()
	if s.ground != nil {
		err = errors.Join(err, s.ground.Close())
	}
	return err
}

// Skips reports whether a gate is for a rate that was not chosen.
func (s *run) Skips(gate string) bool {
	words := strings.Split(gate, "_")
	return slices.Contains(latencies, words[0]) && !slices.ContainsFunc(s.ratesOf(words[0]),
		func(rate int) bool { return words[1] == fmt.Sprint(rate) })
}

// measure measures the sides of a part at each rate.
func (s *run) measure(ctx context.Context, part string) error {
	if s.ground == nil {
		self, err := suite.NewSelf(Suite)
		if err != nil {
			return err
		}
		g, err := testbed.New(ctx, self, s.HAProxy)
		if err != nil {
			return errors.Join(err, g.Close())
		}
		s.ground = g
	}
	sides := sidesOf(part)
	for _, side := range sides {
		if err := prove(ctx, s.ground, side); err != nil {
			return fmt.Errorf("%s: %w", side.name, err)
		}
	}

	var groups []bench.Group
	more := map[string]float64{}
	for _, rate := range s.ratesOf(part) {
		g := bench.Group{Name: fmt.Sprintf("%s_%d", part, rate), Unit: bench.Microsecond,
			Extras: extras}
		for _, side := range sides {
			name := g.Name + "_" + side.name
			g.Sides = append(g.Sides, bench.Side{Name: side.name, Measure: func(
				ctx context.Context) (bench.Sample, error) {
				sample, surplus, err := sample(ctx, s.ground, side, rate, s.Sample)
				if err == nil {
					more[name] += surplus
				}
				return sample, err
			}})
			s.label(name, side, rate)
			if side.name != sideDirect {
				g.Pairs = append(g.Pairs, bench.Pair{Name: name, Ours: side.name, Base: sideDirect,
					BaseName: "direct from " + side.place()})
			}
		}
		groups = append(groups, g)
	}

	err := s.Interleave(ctx, groups)
	for _, g := range groups {
		for _, side := range sides {
			name := g.Name + "_" + side.name
			if v, measured := more[name]; measured {
				s.Add(name+suffixMore, s.Labels[name+suffixMore], bench.Count, v)
			}
		}
	}
	return err
}
