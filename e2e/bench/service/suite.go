package service

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
const Suite = "bench-service"

// Names of parts.
const (
	partPod         = "pod"
	partOutside     = "outside"
	partScale       = "scale"
	partProgramming = "programming"
	partCost        = "cost"
)

var all = []parts.Part[*run]{
	{Name: partPod, Run: func(s *run, ctx context.Context) error { return s.reach(ctx, pod) }},
	{Name: partOutside,
		Run: func(s *run, ctx context.Context) error { return s.reach(ctx, outside) }},
	{Name: partScale, Run: (*run).scale},
	{Name: partProgramming, Run: (*run).programming},
	{Name: partCost, Run: (*run).cost},
}

// Parts are the names of the parts, in the order in which they are run.
func Parts() []string { return parts.Names(all) }

func reachOf(part string) reach {
	if part == partPod {
		return pod
	}
	return outside
}

// run is one run of the suite.
type run struct {
	Options
	runner bench.Runner
	result *bench.Result
	parts  parts.Run
	ground *ground
	// built are lanes by side, size and number.
	built map[string]*lane
	// labels name cases for people.
	labels map[string]string
}

// Run measures. It returns a report with the results so far whenever measuring began, also beside
// an error. Missed gates are not an error. It needs root, and a program that calls Child first.
func Run(ctx context.Context, o Options) (*report.Report, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	if err := findPrograms(o.HAProxy); err != nil {
		return nil, err
	}
	s := &run{Options: o, built: map[string]*lane{}, labels: ownLabels(),
		runner: bench.Runner{Rounds: o.Rounds, Seed: o.Seed, Progress: o.Progress}}
	var err error
	if s.result, err = bench.New(bench.Namespaces, o.Root); err != nil {
		return nil, err
	}
	s.parts = parts.Run{Chosen: o.Parts, Result: s.result, Progress: o.Progress}
	if err := s.parts.LookAround(ctx, 2*time.Second); err != nil {
		return nil, err
	}
	s.ground, err = newGround(ctx, o.HAProxy)
	if err == nil {
		err = parts.Measure(ctx, &s.parts, s, all)
	}
	err = errors.Join(err, s.ground.close())
	if e := s.parts.Judge(Suite, nil); err == nil {
		err = e
	}
	return s.report(), err
}

// lane returns the lane of a side, and makes it at its first use. number distinguishes lanes of one
// side and size. Before lane returns it the first time for a reach, its service must answer.
func (s *run) lane(ctx context.Context, side string, z size, number int, r reach) (*lane, error) {
	key := fmt.Sprintf("%s, %s, %d", side, z, number)
	if side == sideOurs || side == sideRouted || side == sideGuarded {
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

// side makes a side of a group from a quantity of a lane.
func (s *run) side(name string, l *lane, r reach, q quantity) bench.Side {
	return bench.Side{Name: name, Measure: func(ctx context.Context) (bench.Sample, error) {
		return q.measure(ctx, s, l, r)
	}}
}

// measure runs groups and adds their cases. quantityOf has the quantity of each group.
func (s *run) measure(ctx context.Context, groups []bench.Group,
	quantityOf map[string]quantity) error {
	for i := range groups {
		for _, e := range quantityOf[groups[i].Name].extras {
			groups[i].Extras = append(groups[i].Extras, bench.Extra{Suffix: e.suffix, Unit: e.unit})
		}
	}
	cases, ended := s.runner.RunGroups(ctx, groups)
	s.result.Cases = append(s.result.Cases, cases...)
	for _, g := range groups {
		s.label(g, quantityOf[g.Name])
	}
	return ended
}

// one adds a case without another side.
func (s *run) one(name string, unit bench.Unit, values ...float64) {
	s.result.Cases = append(s.result.Cases,
		bench.Case{Name: name, Unit: unit, Ours: bench.Summarize(values)})
}
