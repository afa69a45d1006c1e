package site

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench/service/openloop"
	"github.com/kubeveil/kubeveil/pkg/bench"
)

// Sides of a group besides the lanes, which are computed from the lanes of a round.
const (
	// sidePair is the better of both pairs, for each quantity by itself.
	sidePair = "pair"
	// The difference to clear.
	sideEngineAdded = "engine_added"
	sidePairAdded   = "pair_added"
)

// again is the suffix of the name of a side's second sample in a round, which is its control.
const again = "_again"

// suffixCPU is the suffix of cases of the machine's CPU time.
const suffixCPU = "_processor"

var cpuExtra = []bench.Extra{{Suffix: suffixCPU, Unit: bench.Millisecond}}

// compared returns a group that measures each lane twice per round, in random order. Its cases are
//
//	NAME_LANE           a lane to clear, and the best pair (NAME_pair)
//	NAME_engine_to_pair Kubeveil to the best pair
//	NAME_added          what Kubeveil adds to clear, to what the best pair adds; if added is set
//	NAME_SIDE_again     a side to itself
func (s *run) compared(name string, unit bench.Unit, added bool,
	measure func(context.Context, lane) (bench.Sample, error)) bench.Group {
	g := bench.Group{Name: name, Unit: unit, Extras: cpuExtra}
	sides := append([]string{sidePair}, laneNames...)
	if added {
		sides = append(sides, sideEngineAdded, sidePairAdded)
	}
	pair := func(suffix, ours, base, baseName string) {
		g.Pairs = append(g.Pairs, bench.Pair{Name: name + suffix, Ours: ours, Base: base,
			BaseName: baseName})
	}
	for _, side := range sides {
		g.Sides = append(g.Sides, bench.Side{Name: side}, bench.Side{Name: side + again})
		pair("_"+side+again, side+again, side, "itself")
		if _, is := laneTitles[side]; is && side != laneClear {
			pair("_"+side, side, laneClear, laneTitles[laneClear])
		}
	}
	pair("_engine_to_pair", laneEngine, sidePair, laneTitles[sidePair])
	if added {
		pair("_added", sideEngineAdded, sidePairAdded, "what the best pair adds")
	}

	g.Together = func(ctx context.Context) ([]bench.Sample, error) {
		got := map[string]bench.Sample{}
		for _, i := range s.random.Perm(2 * len(s.world.lanes)) {
			l := s.world.lanes[i/2]
			sample, err := measure(ctx, l)
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			if err != nil {
				return nil, err
			}
			got[l.name+strings.Repeat(again, i%2)] = sample
		}
		derive(got, unit)

		var all []bench.Sample
		for _, side := range g.Sides {
			all = append(all, got[side.Name])
		}
		return all, nil
	}
	s.label(g)
	return g
}

// derive adds the samples of the computed sides to the samples of the lanes.
func derive(got map[string]bench.Sample, unit bench.Unit) {
	best := func(x, y float64) float64 { return min(x, y) }
	if unit.MoreIsBetter() {
		best = func(x, y float64) float64 { return max(x, y) }
	}
	for _, suffix := range []string{"", again} {
		pair := combine(got[laneHAProxy+suffix], got[laneGo+suffix], best)
		got[sidePair+suffix] = pair
		got[sideEngineAdded+suffix] = combine(got[laneEngine+suffix], got[laneClear+suffix], above)
		got[sidePairAdded+suffix] = combine(pair, got[laneClear+suffix], above)
	}
}

// least replaces differences that noise made negative or zero, because ratios to them do not exist.
// It is so small that a control with such a sample spreads too much for any gate.
const least = 1e-3

// above returns x - y, at least least.
func above(x, y float64) float64 { return max(x-y, least) }

// combine returns the sample whose quantities are fn of the quantities of a and b.
func combine(a, b bench.Sample, fn func(x, y float64) float64) bench.Sample {
	c := bench.Sample{Value: fn(a.Value, b.Value), Extras: maps.Clone(a.Extras)}
	if a.P99 > 0 && b.P99 > 0 {
		c.P99 = fn(a.P99, b.P99)
	}
	for suffix := range c.Extras {
		c.Extras[suffix] = fn(a.Extras[suffix], b.Extras[suffix])
	}
	return c
}

// warm is the time at the beginning of a load that does not count.
const warm = 300 * time.Millisecond

// perOperations is the number of operations whose CPU time is a figure.
const perOperations = 10_000

// sample runs a load through a lane and returns its P50, P99 and CPU time.
func (s *run) sample(ctx context.Context, l lane, o openloop.Load) (bench.Sample, error) {
	o.Warm, o.Duration = warm, s.Sample
	r, err := s.world.load(ctx, l, o)
	if err != nil {
		return bench.Sample{}, err
	}
	return bench.Sample{Value: bench.Micros(r.P50), P99: bench.Micros(r.P99),
		Extras: map[string]float64{
			suffixCPU: bench.Millis(r.Spent) * perOperations / (o.Rate * o.Duration.Seconds())}}, nil
}

// requestLoad is a load of part requests.
type requestLoad struct{ rate, connections int }

// name returns the load's part of the names of cases.
func (l requestLoad) name() string { return fmt.Sprintf("%d_%d", l.rate, l.connections) }

// loads returns the loads of part requests.
func (o RunConfig) loads() (all []requestLoad) {
	if o.Slow > 0 {
		all = append(all, requestLoad{o.Slow, o.Connections[0]})
	}
	for _, n := range o.Connections {
		for _, rate := range o.Rates {
			all = append(all, requestLoad{rate, n})
		}
	}
	return all
}

// requests measures one-byte requests over connections that are open already.
func (s *run) requests(ctx context.Context) error {
	var groups []bench.Group
	for _, load := range s.loads() {
		groups = append(groups, s.compared(partRequests+"_"+load.name(), bench.Microsecond, true,
			func(ctx context.Context, l lane) (bench.Sample, error) {
				return s.sample(ctx, l, openloop.Load{Kind: openloop.Request,
					Rate: float64(load.rate), Slots: load.connections})
			}))
	}
	return s.Interleave(ctx, groups)
}

const (
	// connectors is the number of clients that make connections as fast as they can.
	connectors = 16
	// connectRate is the fixed rate of connections at which CPU time is measured. Pairs carry it.
	connectRate = 200
	// Names of groups.
	groupNew   = partConnections + "_new"
	groupFixed = partConnections + "_fixed"
)

// connections measures new connections, each with a byte in each direction: as many as possible,
// and at a fixed rate.
func (s *run) connections(ctx context.Context) error {
	return s.Interleave(ctx, []bench.Group{
		s.compared(groupNew, bench.PerSecond, false,
			func(ctx context.Context, l lane) (bench.Sample, error) {
				r, err := s.world.load(ctx, l, openloop.Load{Kind: openloop.Connect,
					Slots: connectors, Warm: warm, Duration: s.Sample})
				return bench.Sample{Value: r.PerSecond}, err
			}),
		s.compared(groupFixed, bench.Microsecond, true,
			func(ctx context.Context, l lane) (bench.Sample, error) {
				return s.sample(ctx, l, openloop.Load{Kind: openloop.Connect, Rate: connectRate,
					Slots: 1000})
			}),
	})
}
