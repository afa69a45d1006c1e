// Package parts runs the parts of a benchmark and judges them.
//
// It promises that a part that cannot be measured is a missed gate with the reason, and that the
// others still run. It refuses names of parts that the suite does not have.
//
// Start reading at Run.
package parts

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/load"
)

// Part is a group of cases of a suite S. Their names begin with its name and a "_".
type Part[S any] struct {
	Name string
	Run  func(S, context.Context) error
}

// Names returns the names of parts, in the order in which they are run.
func Names[S any](all []Part[S]) (names []string) {
	for _, p := range all {
		names = append(names, p.Name)
	}
	return names
}

// Check returns an error if nothing is chosen, or something that the suite does not have.
func Check(chosen, names []string) error {
	if len(chosen) == 0 {
		return errors.New("no part is chosen")
	}
	for _, p := range chosen {
		if !slices.Contains(names, p) {
			return fmt.Errorf("part %q: want some of %s", p, strings.Join(names, ","))
		}
	}
	return nil
}

// Run is a run of a suite.
type Run struct {
	// Chosen are names of parts.
	Chosen []string
	Result *bench.Result
	// Progress receives a line per step.
	Progress func(format string, args ...any)
	// Notes are for the report.
	Notes []string
}

// LookAround notes for d how busy the machine is with other things.
func (r *Run) LookAround(ctx context.Context, d time.Duration) error {
	cores, err := load.Others(ctx, d)
	if err != nil {
		return err
	}
	text := fmt.Sprintf("Before the run others kept %.2f of %d cores busy.", cores, r.Result.CPUs)
	if cores > 0.1*float64(r.Result.CPUs) {
		text += " That is too much: figures and gates are not to be trusted."
	}
	r.Notes = append(r.Notes, text)
	r.Progress("%s", text)
	return nil
}

// Measure runs those parts of all that are chosen. An error is of ctx.
func Measure[S any](ctx context.Context, r *Run, s S, all []Part[S]) error {
	for _, p := range all {
		if !slices.Contains(r.Chosen, p.Name) {
			continue
		}
		r.Progress("part %s", p.Name)
		err := p.Run(s, ctx)
		if ctx.Err() != nil {
			return fmt.Errorf("part %s: %w", p.Name, context.Cause(ctx))
		}
		if err != nil {
			r.Progress("part %s failed: %v", p.Name, err)
			r.Result.Gates = append(r.Result.Gates,
				bench.Gate{Name: "part " + p.Name, Want: "measured", Got: err.Error()})
		}
	}
	return nil
}

// Judge adds the suite's gates of gates.json. It leaves out gates of parts that were not chosen, and
// gates for which skip returns true; skip may be nil.
func (r *Run) Judge(suite string, skip func(gate string) bool) error {
	gates, err := bench.Judge(r.Result, suite)
	for _, g := range gates {
		part, _, _ := strings.Cut(g.Name, "_")
		if slices.Contains(r.Chosen, part) && (skip == nil || !skip(g.Name)) {
			r.Result.Gates = append(r.Result.Gates, g)
		}
	}
	return err
}
