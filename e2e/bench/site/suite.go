package site

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/pkg/bench/report"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

// Suite is the name of this suite in gates.json.
const Suite = "bench-site"

// Names of parts.
const (
	partRequests    = "requests"
	partConnections = "connections"
	partMemory      = "memory"
	partH2load      = "h2load"
	partPgbench     = "pgbench"
)

// own is the prefix of the name of the suite's folder.
const own = suite.Prefix("kubeveil-bench-site-")

// benchmark has the parts in the order in which they run.
var benchmark = suite.Suite[*run]{Name: Suite, Look: 2 * time.Second, Parts: []suite.Part[*run]{
	{Name: partRequests, Run: (*run).requests},
	{Name: partConnections, Run: (*run).connections},
	{Name: partMemory, Run: (*run).memory},
	{Name: partH2load, Run: (*run).h2load},
	{Name: partPgbench, Run: (*run).pgbench},
}}

// Parts returns the names of the parts in the order in which they run.
func Parts() []string { return benchmark.Names() }

// RunConfig chooses the measurements. The zero value is not valid.
type RunConfig struct {
	suite.Choice
	// Sample is the duration of each measurement.
	Sample time.Duration
	// Rates are the rates of one-byte requests per second. Slow is a lower one, which is measured
	// with the first number of connections only; 0 leaves it out.
	Rates []int
	Slow  int
	// Connections are the numbers of connections that the requests use.
	Connections []int
	// Held is the number of connections that part memory opens in each round.
	Held int
	// HAProxy is the path of haproxy.
	HAProxy string
}

// Defaults of RunConfig.
var (
	Rates       = []int{1000, 3000, 5000}
	Connections = []int{100, 500}
)

// Slow and Held are the defaults of the options of the same names.
const Slow, Held = 200, 1000

// most is the highest rate, mostConnections the highest number of connections, and mostHeld the
// highest number of connections that part memory opens in all rounds. haproxy accepts 8,000.
const most, mostConnections, mostHeld = 20_000, 2000, 7000

// Check returns an error if an option is out of range.
func (o RunConfig) Check() error {
	switch {
	case o.Sample < 100*time.Millisecond:
		return fmt.Errorf("samples of %v: want at least 100ms", o.Sample)
	case !within(o.Rates, most):
		return fmt.Errorf("rates %v: want different ones from 1 to %d", o.Rates, most)
	case !within(o.Connections, mostConnections):
		return fmt.Errorf("%v connections: want different numbers from 1 to %d", o.Connections,
			mostConnections)
	case o.Held < 1 || o.Held*o.Rounds > mostHeld:
		return fmt.Errorf("%d held connections in each of %d rounds: want 1 to %d in total", o.Held,
			o.Rounds, mostHeld)
	case o.Slow < 0 || slices.Contains(o.Rates, o.Slow):
		return fmt.Errorf("the slow rate is %d: want none of the others, or 0", o.Slow)
	}
	return benchmark.Check(o.Choice)
}

// within reports whether list has different numbers from 1 to limit, at least one.
func within(list []int, limit int) bool {
	sorted := slices.Sorted(slices.Values(list))
	return len(list) > 0 && sorted[0] > 0 && sorted[len(sorted)-1] <= limit &&
		len(slices.Compact(sorted)) == len(list)
}

// overhead is the approximate time of a measurement besides its sample.
const overhead = warm + 900*time.Millisecond

// Estimate returns the approximate duration of a run.
func (o RunConfig) Estimate() time.Duration {
	groups := 0
	if slices.Contains(o.Parts, partRequests) {
		groups += len(o.loads())
	}
	if slices.Contains(o.Parts, partConnections) {
		groups += 2
	}
	for _, part := range []string{partMemory, partH2load, partPgbench} {
		if slices.Contains(o.Parts, part) {
			groups++
		}
	}
	return time.Minute + time.Duration(o.Rounds*groups*2*len(laneNames))*(o.Sample+overhead)
}

// run is one run of the suite.
type run struct {
	RunConfig
	*suite.Run
	random *rand.Rand
	world  *world
}

// Run measures the chosen parts and returns the report. If an error ends the run after measuring
// began, Run returns it beside a report of the results so far. A missed gate is not an error. Run
// needs root and the programs of make build and make kubernetes, and its program must call Child
// first.
func Run(ctx context.Context, o RunConfig) (*report.Report, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	return benchmark.Run(ctx, o.Choice, func(ctx context.Context, r *suite.Run) (*run, error) {
		s := &run{RunConfig: o, Run: r, random: rand.New(rand.NewPCG(o.Seed, 1))}
		var err error
		s.world, err = newWorld(ctx, o.HAProxy)
		if err == nil {
			r.Result.Leaks, err = s.world.prove(ctx)
		}
		return s, err
	})
}

// Close removes the labs.
func (s *run) Close() error { return s.world.close() }

// Skips reports whether a gate judges a rate or a number of connections that was not chosen.
func (s *run) Skips(gate string) bool {
	part, rest, _ := strings.Cut(gate, "_")
	return part == partRequests && !slices.ContainsFunc(s.loads(), func(l requestLoad) bool {
		return strings.HasPrefix(rest, l.name()+"_")
	})
}
