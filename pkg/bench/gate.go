package bench

import (
	"fmt"
	"math"
	"slices"
)

// AtLeast returns the gate "the median ratio of c is at least limit".
func AtLeast(name string, c *Case, limit float64) Gate {
	return ratioGate(name, c, limit, "≥", func(v float64) bool { return v >= limit })
}

// AtMost returns the gate "the median ratio of c is at most limit".
func AtMost(name string, c *Case, limit float64) Gate {
	return ratioGate(name, c, limit, "≤", func(v float64) bool { return v <= limit })
}

// evenMargin is the distance from 1 in the place of a limit's own, for a limit of 1.
const evenMargin = 0.03

// unlessNoisy returns g, not judged if the ratio of a control was at least as far from 1 in any
// round as the limit is. A control compares one side with itself, so noise alone could then miss
// the gate. If a control was not measured, the gate is missed.
func unlessNoisy(g Gate, limit float64, controls ...*Case) Gate {
	var spread float64
	for _, c := range controls {
		if c == nil || c.Ratio == nil {
			g.OK, g.Got = false, "the control was not measured"
			return g
		}
		spread = max(spread, c.Ratio.Max-1, 1-c.Ratio.Min)
	}
	margin := math.Abs(limit - 1)
	if limit == 1 {
		margin = evenMargin
	}
	if spread >= margin {
		g.OK, g.NotJudged = false, true
		g.Got = fmt.Sprintf("not judged: control spreads %.3f; %s", spread, g.Got)
	}
	return g
}

// orControl returns g, kept also if the median ratio of c is at most the control's largest ratio of
// a round. If the control was not measured, the gate is missed.
func orControl(g Gate, c, control *Case) Gate {
	if control == nil || control.Ratio == nil {
		g.OK, g.Got = false, "the control was not measured"
		return g
	}
	g.Want += fmt.Sprintf(", or ≤ the control's worst round, %.3f", control.Ratio.Max)
	g.OK = g.OK || c != nil && c.Ratio != nil && c.Ratio.Median <= control.Ratio.Max
	return g
}

// judge returns g, not judged if the base's 99th percentile is more than Tail times its median.
// With Must, the gate is then missed. It is also missed if either was not measured.
func (l calm) judge(g Gate, p50, p99 *Case) Gate {
	if p50 == nil || p50.Base == nil || p99 == nil || p99.Base == nil {
		g.OK, g.Got = false, "the base's median and 99th percentile were not measured"
		return g
	}
	if p99.Base.Median <= l.Tail*p50.Base.Median {
		return g
	}
	g.OK, g.NotJudged = false, !l.Must
	what := "not judged"
	if l.Must {
		what = "cannot be judged"
	}
	g.Got = fmt.Sprintf("%s: P99 of %s is %.1f times its P50, more than %g; %s", what,
		p50.BaseName, p99.Base.Median/p50.Base.Median, l.Tail, g.Got)
	return g
}

// judge returns g, not judged if the base of the case varied too much. If the case was not
// measured, the gate is missed. Nil judges in any run.
func (s *steady) judge(g Gate, r *Result, mtu int) Gate {
	if s == nil {
		return g
	}
	c := r.Find(s.Case, mtu)
	if c == nil || c.Base == nil {
		g.OK, g.Got = false, "the case that must be steady was not measured"
		return g
	}
	if varies := (c.Base.Max - c.Base.Min) / c.Base.Median; varies > s.Share {
		g.OK, g.NotJudged = false, true
		g.Got = fmt.Sprintf("not judged: %s varies by %.0f %%; %s", c.BaseName, 100*varies, g.Got)
	}
	return g
}

func ratioGate(name string, c *Case, limit float64, sign string, keeps func(float64) bool) Gate {
	g := Gate{Name: name, Want: fmt.Sprintf("ratio %s %.3f", sign, limit)}
	if c == nil || c.Ratio == nil {
		g.Got = "not measured"
		return g
	}
	g.Got = fmt.Sprintf("%.3f (%.3f to %.3f in %d rounds)", c.Ratio.Median, c.Ratio.Min,
		c.Ratio.Max, c.Ours.N)
	g.OK = keeps(c.Ratio.Median)
	return g
}

// Below returns the gate "our side's median in c is below limit, in c's unit".
func Below(name string, c *Case, limit float64) Gate {
	return oursGate(name, c, limit, "<", func(v float64) bool { return v < limit })
}

// Within returns the gate "our side's median in c is at most limit, in c's unit".
func Within(name string, c *Case, limit float64) Gate {
	return oursGate(name, c, limit, "≤", func(v float64) bool { return v <= limit })
}

func oursGate(name string, c *Case, limit float64, sign string, keeps func(float64) bool) Gate {
	g := Gate{Name: name}
	if c == nil {
		g.Want, g.Got = fmt.Sprintf("%s %v", sign, limit), "not measured"
		return g
	}
	g.Want = sign + " " + c.Unit.Format(limit)
	g.Got = fmt.Sprintf("%s (%s to %s, n %d)", c.Unit.Format(c.Ours.Median),
		significant(c.Ours.Min), significant(c.Ours.Max), c.Ours.N)
	g.OK = keeps(c.Ours.Median)
	return g
}

// Exactly returns the gate "got equals want". what names the counted things, in the plural.
func Exactly(name string, got, want int, what string) Gate {
	return Gate{Name: name, Want: fmt.Sprintf("%d %s", want, what),
		Got: fmt.Sprintf("%d %s", got, what), OK: got == want}
}

// ofFailures is the name of the gate that Unexplained returns.
const ofFailures = "upstream specs that fail for no listed reason"

// Unexplained returns the gate of a suite that lists the tests that it expects to fail. n is the
// number of failed tests that are not on the list. The gate, not the number of failed tests,
// decides whether the run passes; see JudgesFailures.
func Unexplained(n int) Gate { return Exactly(ofFailures, n, 0, "specs") }

// JudgesFailures reports whether gates contains the gate of Unexplained.
func JudgesFailures(gates []Gate) bool {
	return slices.ContainsFunc(gates, func(g Gate) bool { return g.Name == ofFailures })
}
