package bench

import (
	"fmt"
	"slices"
)

// suite returns the limits of a suite, or nil if the file has none for it.
func (a *allLimits) suite(name string) *limits {
	for i := range a.Suites {
		if a.Suites[i].Suite == name {
			return &a.Suites[i]
		}
	}
	return nil
}

// ProfileOf returns the name of the profile by which a suite is judged on a platform, or "" if
// gates.json has none.
func ProfileOf(suite, platform string) (string, error) {
	a, err := readLimits()
	if err != nil {
		return "", err
	}
	l := a.suite(suite)
	if l == nil {
		return "", nil
	}
	name, _ := l.profile(platform)
	return name, nil
}

func (l *limits) profile(platform string) (string, profile) {
	for name, p := range l.Profiles {
		if slices.Contains(p.Platforms, platform) {
			return name, p
		}
	}
	return "", profile{}
}

// Judge judges a suite's result by the limits of gates.json for its platform and returns the gates.
// If a required case was not measured, its gate is missed. For a suite that is not in gates.json,
// Judge returns the gates that the result already has and, if a leak oracle ran, the gate that
// allows no plaintext.
func Judge(r *Result, suite string) ([]Gate, error) {
	a, err := readLimits()
	if err != nil {
		return nil, err
	}
	l := a.suite(suite)
	if l == nil {
		gates := slices.Clone(r.Gates)
		if r.Leaks != nil {
			gates = append(gates, noPlaintext(r.Leaks))
		}
		return gates, nil
	}
	return l.judge(r)
}

func (l *limits) judge(r *Result) ([]Gate, error) {
	name, p := l.profile(r.Platform)
	if name == "" {
		return nil, fmt.Errorf("no profile of gates is for the platform %q", r.Platform)
	}
	all := append(slices.Clone(l.Every), p.Gates...)
	if err := checkAEAD(all, r.AEAD); err != nil {
		return nil, err
	}

	var gates []Gate
	for _, g := range all {
		if g.AEAD != "" && g.AEAD != r.AEAD {
			continue
		}
		if g.NoPlaintext {
			gates = append(gates, noPlaintext(r.Leaks))
			continue
		}
		for _, mtu := range g.mtus(r, p) {
			if gate, judged := g.judge(r, mtu); judged {
				gates = append(gates, unlessIncomplete(gate, r.Find(g.Case, mtu)))
			}
		}
	}
	if l.Own {
		gates = withOwn(gates, r.Gates)
	}
	return gates, nil
}

// checkAEAD returns an error if some limits are restricted to AEADs but none of them to aead. A
// result of that AEAD would otherwise be judged by fewer limits.
func checkAEAD(all []limit, aead string) error {
	var known []string
	for _, g := range all {
		if g.AEAD == aead && aead != "" {
			return nil
		}
		if g.AEAD != "" {
			known = append(known, g.AEAD)
		}
	}
	if known != nil {
		return fmt.Errorf("no gates are for the AEAD %q, only for %q", aead,
			slices.Compact(known))
	}
	return nil
}

// withOwn returns gates and the gates of own with other names. A result that was judged before also
// holds the gates of that judgement, so equal names are left out.
func withOwn(gates, own []Gate) []Gate {
	for _, g := range own {
		if !slices.ContainsFunc(gates, func(has Gate) bool { return has.Name == g.Name }) {
			gates = append(gates, g)
		}
	}
	return gates
}

// mtus returns the MTUs at which the limit is judged. If the case was not measured at all, it
// returns MTU 0 alone, so that the gate is judged and missed.
func (g limit) mtus(r *Result, p profile) []int {
	switch {
	case g.MTU != 0:
		return []int{g.MTU}
	case len(p.MTUs) > 0:
		return p.MTUs
	}
	var out []int
	for _, c := range r.Cases {
		if c.Name == g.Case {
			out = append(out, c.MTU)
		}
	}
	if out == nil {
		out = []int{0}
	}
	return out
}

// judge returns the gate of the limit at an MTU. judged is false if the limit does not apply: an
// optional case was not measured, or the link has another rate.
func (g limit) judge(r *Result, mtu int) (gate Gate, judged bool) {
	c := r.Find(g.Case, mtu)
	if c == nil && g.IfMeasured {
		return Gate{}, false
	}

	name := g.Case
	if mtu != 0 {
		name += fmt.Sprintf(", MTU %d", mtu)
	}

	if g.Link != nil {
		// Links of other rates have no published figure to compare with.
		if c == nil || c.Base == nil || c.Base.Median < g.Link.BaseAtLeast ||
			c.Base.Median > g.Link.BaseAtMost {
			return Gate{}, false
		}
		name += ", link of " + g.Link.Name
	}

	if g.Within != nil {
		return g.Steady.judge(g.within(name, c), r, mtu), true
	}
	if c != nil && c.BaseName != "" {
		name += ", against " + c.BaseName
	}
	var limit float64
	if g.AtMost != nil {
		limit, gate = *g.AtMost, AtMost(name, c, *g.AtMost)
	} else {
		limit, gate = *g.AtLeast, AtLeast(name, c, *g.AtLeast)
	}
	if g.Control != "" && c != nil && c.Ratio != nil {
		controls := []*Case{r.Find(g.Control, mtu)}
		if g.OurControl != "" {
			controls = append(controls, r.Find(g.OurControl, mtu))
		}
		gate = unlessNoisy(gate, limit, controls...)
	}
	if g.OrControl != "" {
		gate = orControl(gate, c, r.Find(g.OrControl, mtu))
	}
	if g.Calm != nil {
		gate = g.Calm.judge(gate, r.Find(g.Calm.Case, mtu), r.Find(g.Calm.Case+"_p99", mtu))
	}
	return g.Steady.judge(gate, r, mtu), true
}

// within returns the gate of our side's median, or of its best round.
func (g limit) within(name string, c *Case) Gate {
	if g.Best && c != nil {
		best := *c
		best.Ours.Median = best.Ours.Min
		if c.Unit.MoreIsBetter() {
			best.Ours.Median = best.Ours.Max
		}
		name, c = name+", best round", &best
	}
	return Within(name, c, *g.Within)
}

// unlessIncomplete returns g, missed if the run ended before all rounds of its case c.
func unlessIncomplete(g Gate, c *Case) Gate {
	if c != nil && c.Incomplete {
		g.OK, g.NotJudged = false, false
		g.Got += fmt.Sprintf(", incomplete: %d rounds", c.Ours.N)
	}
	return g
}

// noPlaintext returns the gate that is kept if the oracle inspected frames and found no plaintext,
// but did find plaintext in the control. l is nil if no oracle ran; the gate is then missed.
func noPlaintext(l *Leaks) Gate {
	g := Gate{Name: "zero plaintext on the wire",
		Want: "0 frames with plaintext, and a control that shows some"}
	if l == nil {
		g.Got = "not measured"
		return g
	}
	g.Got = fmt.Sprintf("%d of %d frames, control %d", l.Plaintext, l.Frames, l.ControlPlaintext)
	g.OK = l.Plaintext == 0 && l.Frames > 0 && l.ControlPlaintext > 0
	return g
}
