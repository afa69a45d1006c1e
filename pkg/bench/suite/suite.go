package suite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
)

// Suite is a benchmark of parts, of which a run measures those that were chosen. R is a run of it.
type Suite[R Subject] struct {
	// Name is its name in gates.json and the name of the folder of its results.
	Name string
	// Parts are measured in this order.
	Parts []Part[R]
	// Whole reports whether each run is judged by all gates, because the names of cases do not
	// begin with a part. Otherwise gates of parts that were not chosen are left out.
	Whole bool
	// Elsewhere reports whether the suite measures other machines. Then begin starts the result with
	// Run.On, and a part that fails is listed as skipped, with the reason, instead of a missed gate.
	// The gates of what it did not measure are missed.
	Elsewhere bool
	// Look is for how long the other work of the machine is measured before a run. Zero means that
	// it is not measured.
	Look time.Duration
}

// Part is a group of cases, whose names begin with its name and a "_".
type Part[R any] struct {
	Name string
	Run  func(R, context.Context) error
}

// Subject is a run of one suite: what its parts share.
type Subject interface {
	// Close removes what the parts have made. It is called once, after the last part.
	Close() error
	// Skips reports whether a gate judges a quantity of a chosen part that was not chosen.
	Skips(gate string) bool
	// Report returns the report. The suite sets its Result and Labels.
	Report() *report.Report
}

// Choice is what every run of a suite chooses. The zero value is not valid.
type Choice struct {
	// Rounds is how often each side is measured.
	Rounds int
	// Seed determines the order of measurements; bench.NewSeed returns one.
	Seed uint64
	// Parts are names of parts, in any order.
	Parts []string
	// Limit ends the parts of a run that hangs. Zero means no limit.
	Limit time.Duration
	// Root is the folder of the tree whose commit the result names.
	Root string
	// Progress receives a line per step.
	Progress func(format string, args ...any)
}

// Names returns the names of all parts, in the order in which they are measured.
func (s Suite[R]) Names() (names []string) {
	for _, p := range s.Parts {
		names = append(names, p.Name)
	}
	return names
}

// Check returns an error unless there is a round, and a part, and the suite has all parts.
func (s Suite[R]) Check(c Choice) error {
	if c.Rounds < 1 {
		return fmt.Errorf("%d rounds: want at least 1", c.Rounds)
	}
	if len(c.Parts) == 0 {
		return errors.New("no part is chosen")
	}
	names := s.Names()
	for _, p := range c.Parts {
		if !slices.Contains(names, p) {
			return fmt.Errorf("part %q: want some of %s", p, strings.Join(names, ","))
		}
	}
	return nil
}

// Run measures the chosen parts, judges the result by gates.json and returns the report. A part that
// fails is a missed gate with the reason, and the others are still measured. begin returns the
// subject that the parts get. It returns one beside an error, too; then no part is measured, and
// the subject is closed.
//
// Run returns a report whenever it called begin, also beside an error of begin, Close, ctx or the
// limit. A missed gate is not an error. If the suite measures elsewhere, there is no report beside
// an error of begin, and the error of a part is one of Run, too.
func (s Suite[R]) Run(ctx context.Context, c Choice,
	begin func(context.Context, *Run) (R, error)) (*report.Report, error) {
	if err := s.Check(c); err != nil {
		return nil, err
	}
	if c.Limit > 0 {
		limited, cancel := context.WithTimeoutCause(ctx, c.Limit,
			fmt.Errorf("it did not end within %v", c.Limit))
		defer cancel()
		ctx = limited
	}

	r := newRun(c)
	if !s.Elsewhere {
		if err := r.On(bench.Namespaces); err != nil {
			return nil, err
		}
	}
	if s.Look > 0 {
		if err := r.lookAround(ctx, s.Look); err != nil {
			return nil, err
		}
	}

	m, err := begin(ctx, r)
	if err != nil && s.Elsewhere {
		return nil, errors.Join(err, m.Close())
	}
	if err == nil {
		err = s.measure(ctx, r, m)
	}
	err = errors.Join(err, m.Close(), r.judge(s.Name, s.Whole, m.Skips))

	rep := m.Report()
	rep.Result, rep.Labels = r.Result, r.Labels
	return rep, err
}

// measure measures the parts that were chosen. It returns an error if ctx ends, and the errors of
// parts that are measured elsewhere.
func (s Suite[R]) measure(ctx context.Context, r *Run, m R) error {
	var errs []error
	for _, p := range s.Parts {
		if !slices.Contains(r.choice.Parts, p.Name) {
			continue
		}
		r.choice.Progress("part %s", p.Name)
		err := p.Run(m, ctx)
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err == nil {
			continue
		}

		if s.Elsewhere {
			r.Skip(p.Name, "not all of it was measured: "+err.Error())
		}
		if s.Elsewhere || ctx.Err() != nil {
			errs = append(errs, fmt.Errorf("part %s: %w", p.Name, err))
		} else {
			r.choice.Progress("part %s failed: %v", p.Name, err)
			r.Result.Gates = append(r.Result.Gates,
				bench.Gate{Name: "part " + p.Name, Want: "measured", Got: err.Error()})
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}
