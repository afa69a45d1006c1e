package suite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
)

// Suite is a benchmark that consists of parts. A run measures the parts that were chosen. R is the
// type of a run.
type Suite[R Subject] struct {
	// Name is the suite's name in gates.json and the name of the folder of its results.
	Name string
	// Parts lists the parts in the order in which they are measured.
	Parts []Part[R]
	// Whole reports whether each run is judged by all gates, because the names of cases do not
	// begin with a part. Otherwise gates of parts that were not chosen are left out.
	Whole bool
	// Elsewhere reports whether the suite measures other machines. begin then starts the result
	// with Run.On. A part that fails is listed as skipped, with the reason, instead of as a missed
	// gate. The gates of cases that the part did not measure are missed.
	Elsewhere bool
	// Look is how long other work of the machine is measured before a run. Zero disables it.
	Look time.Duration
}

// Part is a part of a suite. Unless Suite.Whole is set, the names of its cases begin with its name
// and a "_".
type Part[R any] struct {
	Name string
	Run  func(R, context.Context) error
}

// Subject is a run of one suite. It holds what the parts share.
type Subject interface {
	// Close removes what the parts have made. Suite.Run calls it once, after the last part.
	Close() error
	// Skips reports whether a gate judges a quantity that was not chosen, although its part was.
	Skips(gate string) bool
	// Report returns the report. The suite sets its Result and Labels.
	Report() *report.Report
}

// Choice holds the options that all suites have. The zero value is not valid.
type Choice struct {
	// Rounds is the number of rounds; each measures each side.
	Rounds int
	// Seed determines the order of measurements; bench.NewSeed returns one.
	Seed uint64
	// Parts are names of parts, in any order.
	Parts []string
	// Limit bounds the time of a run, so that a run that hangs ends. Zero means no limit.
	Limit time.Duration
	// Root is a folder in the git tree whose commit the result records.
	Root string
	// Progress receives a line per step.
	Progress func(format string, args ...any)
}

// SetDefaults replaces zero values: it sets the number of rounds, a seed from the clock, the parts,
// the current folder as Root, and a Progress that drops the lines.
func (c *Choice) SetDefaults(rounds int, parts []string) {
	c.Rounds, c.Seed = cmp.Or(c.Rounds, rounds), cmp.Or(c.Seed, bench.NewSeed())
	c.Root = cmp.Or(c.Root, ".")
	if len(c.Parts) == 0 {
		c.Parts = parts
	}
	if c.Progress == nil {
		c.Progress = func(string, ...any) {}
	}
}

// Names returns the names of all parts, in the order in which they are measured.
func (s Suite[R]) Names() (names []string) {
	for _, p := range s.Parts {
		names = append(names, p.Name)
	}
	return names
}

// Check returns an error if c has less than one round, no part, or a part that the suite lacks.
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

// Run measures the chosen parts, judges the result by gates.json and returns the report. A part
// that fails becomes a missed gate with the reason; the other parts are still measured. begin
// returns the subject that the parts receive. It must return a subject even with an error; Run
// then closes the subject and measures no part.
//
// Run returns a report whenever it called begin, even with an error of begin, Close, ctx or the
// limit. A missed gate is not an error. If the suite measures elsewhere, Run returns no report
// beside an error of begin, and it returns the errors of parts.
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

// measure measures the parts that were chosen. It returns an error if ctx ends. If the suite
// measures elsewhere, it also returns the errors of parts.
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
