package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// Sample is what one measurement of one side gave.
type Sample struct {
	// Value is in the unit of the case.
	Value float64
	// CPU is in core-seconds a 10^9 bytes of payload; 0 when not counted.
	CPU float64
}

// Measure takes one sample. It returns soon after ctx is done.
type Measure func(ctx context.Context) (Sample, error)

// Comparison is a case to be measured. Base may be nil: then there is no ratio.
type Comparison struct {
	Name     string
	MTU      int
	Unit     Unit
	Ours     Measure
	Base     Measure
	BaseName string
}

// Runner measures comparisons, interleaved.
type Runner struct {
	// Rounds is how often each side of each comparison is measured.
	Rounds int
	// Seed determines the order.
	Seed uint64
	// Progress is told each step; nil tells nobody.
	Progress func(format string, args ...any)
}

// NewSeed gives a seed for Runner from the clock.
func NewSeed() uint64 { return uint64(time.Now().UnixNano()) }

// Run measures each comparison once a round, in an order drawn anew for each
// round, and the sides of one comparison directly after one another, also in an order
// that is drawn. The first error ends it. The cases come in the order of comps,
// each followed by a case with the suffix "_cpu" when its samples count CPU.
func (r *Runner) Run(ctx context.Context, comps []Comparison) ([]Case, error) {
	rng := rand.New(rand.NewPCG(r.Seed, 0))
	r.progress("%d rounds, order drawn with seed %d", r.Rounds, r.Seed)
	all := make([]series, len(comps))
	for round := 1; round <= r.Rounds; round++ {
		for _, i := range rng.Perm(len(comps)) {
			oursFirst := rng.IntN(2) == 0
			if err := r.measure(ctx, &comps[i], &all[i], oursFirst); err != nil {
				return nil, fmt.Errorf("%s at MTU %d, round %d: %w", comps[i].Name, comps[i].MTU, round, err)
			}
			r.progress("round %d/%d  %s", round, r.Rounds, all[i].last(&comps[i]))
		}
	}
	var cases []Case
	for i := range comps {
		c, err := all[i].cases(&comps[i])
		if err != nil {
			return nil, fmt.Errorf("%s at MTU %d: %w", comps[i].Name, comps[i].MTU, err)
		}
		cases = append(cases, c...)
	}
	return cases, nil
}

func (r *Runner) progress(format string, args ...any) {
	if r.Progress != nil {
		r.Progress(format, args...)
	}
}

func (r *Runner) measure(ctx context.Context, c *Comparison, s *series, oursFirst bool) error {
	ours := func() error { return s.ours.take(ctx, "ours", c.Ours) }
	base := func() error { return s.base.take(ctx, c.BaseName, c.Base) }
	steps := []func() error{ours, base}
	switch {
	case c.Base == nil:
		steps = steps[:1]
	case !oursFirst:
		steps = []func() error{base, ours}
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// series are the samples of one comparison, by round.
type series struct{ ours, base side }

type side struct{ values, cpu []float64 }

func (s *side) take(ctx context.Context, name string, m Measure) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	sample, err := m(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	s.values = append(s.values, sample.Value)
	if sample.CPU > 0 {
		s.cpu = append(s.cpu, sample.CPU)
	}
	return nil
}

func (s *series) last(c *Comparison) string {
	n := len(s.ours.values) - 1
	text := fmt.Sprintf("%s, MTU %d: ours %s", c.Name, c.MTU, c.Unit.Format(s.ours.values[n]))
	if c.MTU == 0 {
		text = fmt.Sprintf("%s: ours %s", c.Name, c.Unit.Format(s.ours.values[n]))
	}
	if c.Base == nil {
		return text
	}
	text += fmt.Sprintf(", %s %s", c.BaseName, c.Unit.Format(s.base.values[n]))
	if s.base.values[n] != 0 {
		text += fmt.Sprintf(", ratio %.3f", s.ours.values[n]/s.base.values[n])
	}
	return text
}

func (s *series) cases(c *Comparison) ([]Case, error) {
	first, err := newCase(c.Name, c.MTU, c.Unit, s.ours.values, s.base.values, c.BaseName)
	if err != nil {
		return nil, err
	}
	counted := len(s.ours.cpu) == len(s.ours.values) && len(s.base.cpu) == len(s.base.values)
	if !counted {
		return []Case{first}, nil
	}
	second, err := newCase(c.Name+"_cpu", c.MTU, CoreSecondsPerGB, s.ours.cpu, s.base.cpu, c.BaseName)
	return []Case{first, second}, err
}

func newCase(name string, mtu int, unit Unit, ours, base []float64, baseName string) (Case, error) {
	c := Case{Name: name, MTU: mtu, Unit: unit, Ours: Summarize(ours)}
	if len(base) == 0 {
		return c, nil
	}
	ratio, err := Ratios(ours, base)
	if err != nil {
		return Case{}, err
	}
	b := Summarize(base)
	c.Base, c.BaseName, c.Ratio = &b, baseName, &ratio
	return c, nil
}
