package service

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

// Suite is the name of this suite in gates.json.
const Suite = "bench-service"

// Names of parts.
const (
	partPod         = "pod"
	partOutside     = "outside"
	partScale       = "scale"
	partProgramming = "programming"
	partCost        = "cost"
)

// benchmark has the parts in the order in which they run.
var benchmark = suite.Suite[*run]{Name: Suite, Look: 2 * time.Second, Parts: []suite.Part[*run]{
	{Name: partPod, Run: func(s *run, ctx context.Context) error { return s.reach(ctx, pod) }},
	{Name: partOutside,
		Run: func(s *run, ctx context.Context) error { return s.reach(ctx, outside) }},
	{Name: partScale, Run: (*run).scale},
	{Name: partProgramming, Run: (*run).programming},
	{Name: partCost, Run: (*run).cost},
}}

// Parts returns the names of the parts in the order in which they run.
func Parts() []string { return benchmark.Names() }

// run is one run of the suite.
type run struct {
	RunConfig
	*suite.Run
	ground *ground
	// built holds the lanes, keyed by side, size and number.
	built map[string]*lane
	// late holds the size of the table that kube-proxy did not write within its limit, keyed by
	// side.
	late map[string]size
}

// Run measures the chosen parts and returns the report. If an error ends the run after measuring
// began, Run returns it beside a report of the results so far. A missed gate is not an error. Run
// needs root, and its program must call Child first.
func Run(ctx context.Context, o RunConfig) (*report.Report, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	if err := findPrograms(o); err != nil {
		return nil, err
	}
	return benchmark.Run(ctx, o.Choice, func(ctx context.Context, r *suite.Run) (*run, error) {
		s := &run{RunConfig: o, Run: r, built: map[string]*lane{}, late: map[string]size{}}
		s.Labels = ownLabels()
		if !ipvsHere() {
			s.Notes = append(s.Notes, "IPVS is not a side, and its gates are not judged: the kernel "+
				"has no ip_vs, or the machine no ipset.")
		}
		var err error
		s.ground, err = newGround(ctx, o)
		return s, err
	})
}

// Close removes the endpoints and the lanes.
func (s *run) Close() error { return s.ground.close() }

// lane returns the lane of a side, which it makes at the first call. number distinguishes lanes of
// one side and size. At the first call for a reach, lane returns an error unless the lane's service
// answers (proof).
func (s *run) lane(ctx context.Context, side string, z size, number int, r reach) (*lane, error) {
	key := fmt.Sprintf("%s, %s, %d", side, z, number)
	if slices.Contains(ourNodes, side) {
		key += ", " + r.String()
	}
	l := s.built[key]
	if l == nil {
		start := time.Now()
		var err error
		if l, err = s.ground.lane(ctx, side, z, r); err != nil {
			return nil, err
		}
		s.built[key] = l
		if took := time.Since(start); took > 2*time.Second {
			s.Progress("%s: ready in %.1f s", l, took.Seconds())
		}
	}
	if proven := fmt.Sprintf("%s from %s", key, r); s.built[proven] == nil {
		if err := s.ground.proof(ctx, l, r); err != nil {
			return nil, err
		}
		s.built[proven] = l
	}
	return l, nil
}

// measure measures the quantities with these names, or all if there are none, and adds their cases.
// lanes has the lane of each side. The name of a group is the name of its quantity after prefix;
// pairs returns the comparisons of a group.
func (s *run) measure(ctx context.Context, prefix string, r reach, names, sides []string,
	lanes map[string]*lane, pairs func(group string) []bench.Pair) error {
	var groups []bench.Group
	of := map[string]quantity{}
	for _, q := range quantities {
		if len(names) > 0 && !slices.Contains(names, q.name) {
			continue
		}
		g := bench.Group{Name: prefix + q.name, Unit: q.unit, Turns: s.Turns}
		g.Pairs = pairs(g.Name)
		if q.noProxy {
			g.Pairs = slices.DeleteFunc(g.Pairs, func(p bench.Pair) bool {
				return p.Ours == sideHAProxy || p.Base == sideHAProxy
			})
		}
		for _, side := range sides {
			if q.noProxy && side == sideHAProxy {
				continue
			}
			g.Sides = append(g.Sides, bench.Side{Name: side,
				Measure: func(ctx context.Context) (bench.Sample, error) {
					return q.measure(ctx, s, lanes[side], r)
				}})
		}
		for _, e := range q.extras {
			g.Extras = append(g.Extras, bench.Extra{Suffix: e.suffix, Unit: e.unit})
		}
		groups, of[g.Name] = append(groups, g), q
	}

	err := s.Interleave(ctx, groups)
	for _, g := range groups {
		s.label(g, of[g.Name])
	}
	return err
}
