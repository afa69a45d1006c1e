package suite

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/load"
)

// Run holds the state that the runs of all suites share. The struct of a suite's run embeds it and
// adds a Report method to become a Subject.
type Run struct {
	// Result is the result of the run. If the suite measures elsewhere, it is nil until On.
	Result *bench.Result
	// Labels holds titles of cases for the report, keyed by the name of the case.
	Labels map[string]string
	// Notes are notes for the report, a sentence each.
	Notes []string

	choice Choice
	runner bench.Runner
}

// newRun returns a run without a result.
func newRun(c Choice) *Run {
	return &Run{Labels: map[string]string{}, choice: c,
		runner: bench.Runner{Rounds: c.Rounds, Seed: c.Seed, Progress: c.Progress}}
}

// On starts the result of a run on nodes of platform. A suite that measures elsewhere calls it
// once, before it adds cases or skips.
func (r *Run) On(platform string) (err error) {
	r.Result, err = bench.New(platform, r.choice.Root)
	return err
}

// Skip adds a quantity that is not measured to the skipped tests of the result, with the reason.
func (r *Run) Skip(name, reason string) {
	r.choice.Progress("skipped: %s: %s", name, reason)
	r.Result.Tests.Skipped = append(r.Result.Tests.Skipped, bench.Skip{Name: name, Reason: reason})
}

// Close does nothing. A suite whose parts share resources overrides it to remove them.
func (r *Run) Close() error { return nil }

// Skips returns false. A suite that can measure only some quantities of a part overrides it.
func (r *Run) Skips(string) bool { return false }

// Interleave measures groups with bench.Runner. In each round, the sides of a group are measured
// directly after one another, in random order. It adds the cases to the result, also those of an
// interrupted run.
func (r *Run) Interleave(ctx context.Context, groups []bench.Group) error {
	cases, err := r.runner.RunGroups(ctx, groups)
	r.Result.Cases = append(r.Result.Cases, cases...)
	return err
}

// Both measures comparisons of two sides, as Interleave does for groups.
func (r *Run) Both(ctx context.Context, comparisons []bench.Comparison) error {
	cases, err := r.runner.Run(ctx, comparisons)
	r.Result.Cases = append(r.Result.Cases, cases...)
	return err
}

// Add adds a case without another side. With an empty label, the report shows the case's name.
func (r *Run) Add(name, label string, unit bench.Unit, values ...float64) {
	r.add(bench.Case{Name: name, Unit: unit, Ours: bench.Summarize(values)}, label)
}

// Compare adds a case with two sides, each with one value per round.
func (r *Run) Compare(name, label string, unit bench.Unit, ours, base []float64,
	baseName string) error {
	c, err := bench.NewCase(name, 0, unit, ours, base, baseName)
	if err == nil {
		r.add(c, label)
	}
	return err
}

func (r *Run) add(c bench.Case, label string) {
	r.Result.Cases = append(r.Result.Cases, c)
	if label != "" {
		r.Labels[c.Name] = label
	}
}

// MedianText returns our side of a case for a table, or "–" if the case does not exist.
func (r *Run) MedianText(name string) string {
	c := r.Result.Find(name, 0)
	if c == nil {
		return "–"
	}
	return c.Unit.Format(c.Ours.Median)
}

// RatioText returns the ratio of a case for a table, or "–" if there is none.
func (r *Run) RatioText(name string) string {
	c := r.Result.Find(name, 0)
	if c == nil || c.Ratio == nil {
		return "–"
	}
	return fmt.Sprintf("%.2f (%.2f to %.2f)", c.Ratio.Median, c.Ratio.Min, c.Ratio.Max)
}

// lookAround measures for d how busy the machine is with other work, and adds a note about it.
func (r *Run) lookAround(ctx context.Context, d time.Duration) error {
	cores, err := load.Others(ctx, d)
	if err != nil {
		return err
	}
	text := fmt.Sprintf("Before the run, other programs kept %.2f of %d cores busy.", cores,
		r.Result.CPUs)
	if cores > 0.1*float64(r.Result.CPUs) {
		text += " That is too much: do not trust the figures and gates."
	}
	r.Notes = append(r.Notes, text)
	r.choice.Progress("%s", text)
	return nil
}

// judge judges the result by the gates of a suite and adds them to the gates that parts have added.
// Unless whole is set, it leaves out gates of parts that were not chosen, and gates for which skips
// returns true.
func (r *Run) judge(suite string, whole bool, skips func(gate string) bool) error {
	gates, err := bench.Judge(r.Result, suite)
	if whole {
		for _, own := range r.Result.Gates {
			if !slices.ContainsFunc(gates, func(g bench.Gate) bool { return g.Name == own.Name }) {
				gates = append(gates, own)
			}
		}
		r.Result.Gates = gates
		return err
	}
	for _, g := range gates {
		part, _, _ := strings.Cut(g.Name, "_")
		if slices.Contains(r.choice.Parts, part) && !skips(g.Name) {
			r.Result.Gates = append(r.Result.Gates, g)
		}
	}
	return err
}
