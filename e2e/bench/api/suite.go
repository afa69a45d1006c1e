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

// Suite is the name of this suite in gates.json.
const Suite = "bench-api"

// benchmark has the parts in the order in which they run.
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

// latency returns a part that measures latencies at each rate, in rounds.
func latency(name string) suite.Part[*run] {
	return suite.Part[*run]{Name: name, Run: func(s *run, ctx context.Context) error {
		return s.measure(ctx, name)
	}}
}

// Parts that measure latencies, over IPv4 and over IPv6.
const (
	partPod   = "pod"
	partHost  = "host"
	partPod6  = "pod6"
	partHost6 = "host6"
)

// latencies lists the parts that measure latencies.
var latencies = []string{partPod, partHost, partPod6, partHost6}

// Parts that use a lab. They have no rates and no rounds.
const (
	partFailure  = "failure"
	partHang     = "hang"
	partWell     = "well"
	partProbers  = "probers"
	partRestart  = "restart"
	partFailure6 = "failure6"
)

// Parts returns the names of the parts in the order in which they run.
func Parts() []string { return benchmark.Names() }

// Rates are the default rates, GET/s.
var Rates = []int{500, 1000, 2000}

// RunConfig chooses the measurements. The zero value is not valid.
type RunConfig struct {
	// Choice has Rounds, the number of measurements of each side at each rate.
	suite.Choice
	// Sample is the duration of each measurement of latencies.
	Sample time.Duration
	// Rates are the rates of requests, GET/s.
	Rates []int
	// Faults is the number of repetitions of each fault in parts failure, failure6 and hang.
	Faults int
	// Settle is the time from the restart to the last count of connections in part restart.
	Settle time.Duration
	// Probers is the number of nodes that probe a server in part probers. Steady is the duration of
	// each measurement in that part.
	Probers int
	Steady  time.Duration
	// HAProxy is the path of haproxy.
	HAProxy string
}

// most is the highest rate that RunConfig may have. mostProbers is the highest number of probers:
// each has up to two connections to one address, so more would run out of ports.
const most, mostProbers = 20_000, 20_000

// Check returns an error if an option is out of range.
func (o RunConfig) Check() error {
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

// overhead is the time of a measurement besides its sample.
const overhead = warm + 700*time.Millisecond

// Estimate returns the approximate duration of a run.
func (o RunConfig) Estimate() time.Duration {
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

// ratesOf returns the rates of a part. Parts over IPv6 measure only the first rate.
func (o RunConfig) ratesOf(part string) []int {
	if part == partPod6 || part == partHost6 {
		return o.Rates[:1]
	}
	return o.Rates
}

// run is one run of the suite.
type run struct {
	RunConfig
	*suite.Run
	ground *testbed.Testbed
	lab    *faultlab.Lab
}

// Run measures the chosen parts and returns the report. If an error ends the run after measuring
// began, Run returns it beside a report of the results so far. A missed gate is not an error. Run
// needs root, and its program must call Child first.
func Run(ctx context.Context, o RunConfig) (*report.Report, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	return benchmark.Run(ctx, o.Choice, func(_ context.Context, r *suite.Run) (*run, error) {
		return &run{RunConfig: o, Run: r}, nil
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

// Skips reports whether a gate judges a rate that was not chosen.
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
