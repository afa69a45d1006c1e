package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Sample is the result of one measurement of one side.
type Sample struct {
	// Value is in the unit of the case.
	Value float64
	// CPU is in core-seconds per 10^9 bytes of payload; 0 means that it was not counted.
	CPU float64
	// P99 is the 99th percentile where Value is a median, in the same unit; 0 means that there is
	// none.
	P99 float64
	// Extras are further results of the measurement, by the suffixes of the group's Extras. A value
	// that is 0 or absent was not measured.
	Extras map[string]float64
}

// Extra is another quantity of the measurements of a Group. Each pair's case is followed by one
// with the suffix when all samples have it.
type Extra struct {
	Suffix string
	Unit   Unit
}

// Measure takes one sample. It returns soon after ctx is done.
type Measure func(ctx context.Context) (Sample, error)

// Comparison is a case to be measured. Base may be nil: then the case has only a figure, not a
// ratio.
type Comparison struct {
	Name     string
	MTU      int
	Unit     Unit
	Ours     Measure
	Base     Measure
	BaseName string
}

// group returns the comparison as sides that are measured one after the other.
func (c Comparison) group() Group {
	g := Group{Name: c.Name, MTU: c.MTU, Unit: c.Unit, Sides: []Side{{"ours", c.Ours}},
		Pairs: []Pair{{Name: c.Name, Ours: "ours"}}}
	if c.Base != nil {
		g.Sides = append(g.Sides, Side{c.BaseName, c.Base})
		g.Pairs[0].Base = c.BaseName
	}
	return g
}

// Group is one quantity of several sides, all measured directly after one another, and the cases
// made of them.
type Group struct {
	// Name is for progress and errors.
	Name  string
	MTU   int
	Unit  Unit
	Sides []Side
	Pairs []Pair
	// Extras describe the further results of samples; may be empty.
	Extras []Extra
	// Turns is how often each side is measured in a round, in alternation; its sample of the round
	// is the mean. Zero means once. Prefer more turns to longer samples: other work of the machine
	// then affects all sides.
	Turns int
	// Together, when it is not nil, measures all sides at once instead of each by its Measure, and
	// returns a sample of each in their order.
	Together func(ctx context.Context) ([]Sample, error)
}

// Side is one of a Group, whose names differ.
type Side struct {
	Name    string
	Measure Measure
}

// Pair is a case: two sides of a Group by their names. An empty Base means that there is no ratio.
// BaseName is the name of the base in the result; empty means the name of the side.
type Pair struct {
	Name, Ours, Base, BaseName string
}

// Runner measures comparisons, interleaved.
type Runner struct {
	// Rounds is how often each side of each comparison is measured.
	Rounds int
	// Seed determines the order.
	Seed uint64
	// Progress receives each step; nil drops them.
	Progress func(format string, args ...any)
}

// NewSeed returns a seed for Runner from the clock.
func NewSeed() uint64 { return uint64(time.Now().UnixNano()) }

// Run measures each comparison once per round. The order of comparisons is random in each round,
// and so is the order of the sides of one comparison, which follow each other directly. The first
// error ends Run, which then also returns the cases of the complete rounds. The cases have the
// order of comps. Each is followed by a case with the suffix "_cpu" when its samples count CPU.
func (r *Runner) Run(ctx context.Context, comps []Comparison) ([]Case, error) {
	groups := make([]Group, len(comps))
	for i, c := range comps {
		groups[i] = c.group()
	}
	return r.RunGroups(ctx, groups)
}

// RunGroups is Run for groups of any number of sides. A pair's case is also followed by one with
// the suffix "_p99" when its samples have a P99.
func (r *Runner) RunGroups(ctx context.Context, groups []Group) ([]Case, error) {
	all := make([]series, len(groups))
	ended := r.rounds(ctx, groups, all)
	var cases []Case
	for i := range groups {
		if len(all[i]) == 0 {
			// It ended before.
			continue
		}
		for _, p := range groups[i].Pairs {
			c, err := all[i].cases(&groups[i], p)
			if err != nil {
				return cases, errors.Join(ended, fmt.Errorf("%s at MTU %d: %w", p.Name,
					groups[i].MTU, err))
			}
			cases = append(cases, c...)
		}
	}
	return cases, ended
}

// rounds measures each group once a round into all, until an error.
func (r *Runner) rounds(ctx context.Context, groups []Group, all []series) error {
	rng := rand.New(rand.NewPCG(r.Seed, 0))
	r.progress("%d rounds, order drawn with seed %d", r.Rounds, r.Seed)
	for i := range all {
		all[i] = series{}
	}
	for round := 1; round <= r.Rounds; round++ {
		for _, i := range rng.Perm(len(groups)) {
			g := &groups[i]
			if err := all[i].round(ctx, g, rng); err != nil {
				return fmt.Errorf("%s at MTU %d, round %d: %w", g.Name, g.MTU, round, err)
			}
			r.progress("round %d/%d  %s", round, r.Rounds, all[i].last(g))
		}
	}
	return nil
}

func (r *Runner) progress(format string, args ...any) {
	if r.Progress != nil {
		r.Progress(format, args...)
	}
}

// series are the samples of one group by side, each in the order of rounds.
type series map[string][]Sample

// round measures each side in all its turns.
func (s series) round(ctx context.Context, g *Group, rng *rand.Rand) error {
	turns := series{}
	for range max(1, g.Turns) {
		if g.Together != nil {
			if err := turns.takeAll(ctx, g); err != nil {
				return err
			}
			continue
		}
		for _, k := range rng.Perm(len(g.Sides)) {
			if err := turns.take(ctx, g.Sides[k]); err != nil {
				return err
			}
		}
	}
	for side, samples := range turns {
		s[side] = append(s[side], mean(samples))
	}
	return nil
}

func mean(samples []Sample) (m Sample) {
	n := float64(len(samples))
	m.Extras = map[string]float64{}
	for _, s := range samples {
		for suffix, v := range s.Extras {
			m.Extras[suffix] += v / n
		}
		m.Value += s.Value / n
		m.CPU += s.CPU / n
		m.P99 += s.P99 / n
	}
	return m
}

func (s series) take(ctx context.Context, side Side) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	sample, err := side.Measure(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", side.Name, err)
	}
	s[side.Name] = append(s[side.Name], sample)
	return nil
}

func (s series) takeAll(ctx context.Context, g *Group) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	samples, err := g.Together(ctx)
	if err == nil && len(samples) != len(g.Sides) {
		err = fmt.Errorf("%d samples of %d sides", len(samples), len(g.Sides))
	}
	if err != nil {
		return err
	}
	for i, side := range g.Sides {
		s[side.Name] = append(s[side.Name], samples[i])
	}
	return nil
}

// last describes the last round.
func (s series) last(g *Group) string {
	text := g.Name
	if g.MTU != 0 {
		text += fmt.Sprintf(", MTU %d", g.MTU)
	}
	sep := ": "
	for _, side := range g.Sides {
		samples := s[side.Name]
		text += fmt.Sprintf("%s%s %s", sep, side.Name, g.Unit.Format(samples[len(samples)-1].Value))
		sep = ", "
	}
	if len(g.Sides) == 2 && g.Pairs[0].Base != "" {
		ours, base := s[g.Pairs[0].Ours], s[g.Pairs[0].Base]
		if last := base[len(base)-1].Value; last != 0 {
			text += fmt.Sprintf(", ratio %.3f", ours[len(ours)-1].Value/last)
		}
	}
	return text
}

// values returns one number of each sample of a side, or nil unless all samples have it.
func (s series) values(side string, number func(Sample) float64) []float64 {
	var out []float64
	for _, sample := range s[side] {
		v := number(sample)
		if v <= 0 {
			return nil
		}
		out = append(out, v)
	}
	return out
}

// also is a further quantity of samples.
type also struct {
	Extra
	number func(Sample) float64
}

func (g *Group) also() []also {
	all := []also{
		{Extra{"_cpu", CoreSecondsPerGB}, func(s Sample) float64 { return s.CPU }},
		{Extra{"_p99", g.Unit}, func(s Sample) float64 { return s.P99 }},
	}
	for _, e := range g.Extras {
		all = append(all, also{e, func(s Sample) float64 { return s.Extras[e.Suffix] }})
	}
	return all
}

func (s series) cases(g *Group, p Pair) ([]Case, error) {
	if p.BaseName == "" {
		p.BaseName = p.Base
	}

	var ours, base []float64
	for _, sample := range s[p.Ours] {
		ours = append(ours, sample.Value)
	}

	for _, sample := range s[p.Base] {
		base = append(base, sample.Value)
	}

	first, err := NewCase(p.Name, g.MTU, g.Unit, ours, base, p.BaseName)
	if err != nil {
		return nil, err
	}

	out := []Case{first}
	for _, also := range g.also() {
		ours, base := s.values(p.Ours, also.number), s.values(p.Base, also.number)
		if ours == nil || p.Base != "" && base == nil {
			continue
		}
		c, err := NewCase(p.Name+also.Suffix, g.MTU, also.Unit, ours, base, p.BaseName)
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}

	return out, nil
}
