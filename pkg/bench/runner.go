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
	// P99 is the 99th percentile if Value is a median, in the same unit; 0 means not measured.
	P99 float64
	// Extras holds further results of the measurement, keyed by the suffixes in Group.Extras. A
	// value that is 0 or absent was not measured.
	Extras map[string]float64
}

// Extra is another quantity that the measurements of a Group return. If all samples have a value of
// it, each pair's case is followed by a case for it, named with the suffix.
type Extra struct {
	Suffix string
	Unit   Unit
}

// Measure takes one sample. It returns soon after ctx is done.
type Measure func(ctx context.Context) (Sample, error)

// Comparison is a case to be measured. If Base is nil, the case has a figure but no ratio.
type Comparison struct {
	Name     string
	MTU      int
	Unit     Unit
	Ours     Measure
	Base     Measure
	BaseName string
}

// group returns the comparison as a Group of one or two sides.
func (c Comparison) group() Group {
	g := Group{Name: c.Name, MTU: c.MTU, Unit: c.Unit, Sides: []Side{{"ours", c.Ours}},
		Pairs: []Pair{{Name: c.Name, Ours: "ours"}}}
	if c.Base != nil {
		g.Sides = append(g.Sides, Side{c.BaseName, c.Base})
		g.Pairs[0].Base = c.BaseName
	}
	return g
}

// Group is one quantity of several sides, which are measured directly after one another. Each pair
// of sides makes a case.
type Group struct {
	// Name appears in progress and errors.
	Name  string
	MTU   int
	Unit  Unit
	Sides []Side
	Pairs []Pair
	// Extras describes the further results of samples; may be empty.
	Extras []Extra
	// Turns is the number of times that each side is measured in a round. The sides alternate, and
	// the sample of the round is the mean. Zero means once. Prefer more turns to longer samples,
	// because other work of the machine then affects all sides alike.
	Turns int
	// Together, if not nil, measures all sides at once and returns one sample per side, in the
	// order of Sides. The sides' Measure functions are then not used.
	Together func(ctx context.Context) ([]Sample, error)
}

// Side is one side of a Group. Its name is unique in the group.
type Side struct {
	Name    string
	Measure Measure
}

// Pair describes a case by the names of two sides of a Group. An empty Base means a case without a
// ratio. BaseName is the name of the base in the result; empty means the name of the side.
type Pair struct {
	Name, Ours, Base, BaseName string
}

// Runner measures comparisons. It interleaves their sides.
type Runner struct {
	// Rounds is the number of rounds. Each round measures each side of each comparison.
	Rounds int
	// Seed determines the random order.
	Seed uint64
	// Progress receives a line per step; nil drops the lines.
	Progress func(format string, args ...any)
}

// NewSeed returns a seed for Runner from the clock.
func NewSeed() uint64 { return uint64(time.Now().UnixNano()) }

// Run measures each comparison once per round. The order of comparisons is random in each round.
// The sides of one comparison are measured directly after one another, also in random order. The
// first error ends Run, which then also returns the cases of the complete rounds. The cases are in
// the order of comps. If all samples of a case count CPU, a case with the suffix "_cpu" follows it.
func (r *Runner) Run(ctx context.Context, comps []Comparison) ([]Case, error) {
	groups := make([]Group, len(comps))
	for i, c := range comps {
		groups[i] = c.group()
	}
	return r.RunGroups(ctx, groups)
}

// RunGroups is Run for groups of any number of sides. If all samples of a pair have a P99, a case
// with the suffix "_p99" also follows the pair's case.
func (r *Runner) RunGroups(ctx context.Context, groups []Group) ([]Case, error) {
	all := make([]series, len(groups))
	ended := r.rounds(ctx, groups, all)
	var cases []Case
	for i := range groups {
		if len(all[i]) == 0 {
			// The run ended before the group's first round was complete.
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

// rounds measures each group once per round until an error, and stores the samples in all, which
// has one series per group.
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

// series holds the samples of one group, keyed by the name of the side, in the order of rounds.
type series map[string][]Sample

// round measures each side Turns times and appends the means as the samples of one round.
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

// last returns a line about the last round, for progress.
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

// values returns number of each sample of a side, or nil if it is not positive for some sample.
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

// also is a further quantity of samples, and the function that reads it from a sample.
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
