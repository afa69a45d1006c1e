package bench

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
)

//go:embed gates.json
var gatesFile []byte

// allLimits is the content of gates.json.
type allLimits struct {
	Suites []limits `json:"suites"`
}

// limits are the gates of one suite.
type limits struct {
	// Suite names the suite of the results.
	Suite string `json:"suite"`
	// Every has the limits of all profiles.
	Every    []limit            `json:"every"`
	Profiles map[string]profile `json:"profiles"`
	// Own reports whether Judge also returns the gates that the result already has.
	Own bool `json:"own"`
}

// profile holds the limits for some platforms. Only the platform of a result selects the profile.
type profile struct {
	Platforms []string `json:"platforms"`
	// MTUs are the MTUs at which a limit without an MTU is judged; empty means every measured MTU.
	MTUs  []int   `json:"mtus"`
	Gates []limit `json:"gates"`
}

// limit is a gate. Exactly one of four fields is set: AtLeast or AtMost bounds the median ratio of
// Case, Within bounds our side's median in the case's unit, and NoPlaintext has no case.
type limit struct {
	// For has lists of values by name. The file's gate stands for a gate for each combination of
	// values, which has them in place of the names.
	For     map[string][]string `json:"for,omitempty"`
	Case    string              `json:"case"`
	MTU     int                 `json:"mtu"`
	AtLeast *float64            `json:"atLeast"`
	AtMost  *float64            `json:"atMost"`
	Within  *float64            `json:"within"`
	// AEAD restricts the gate to results with this AEAD; empty means every result.
	AEAD string `json:"aead"`
	// Link restricts the gate to results from links of some rates; nil means all rates.
	Link *link `json:"link"`
	// Control names a case that compares the base of Case with itself, and OurControl one that
	// compares our side with itself. The limit of a ratio is judged only if the ratios of both are
	// closer to 1 than the limit in every round, or within 3 % for a limit of 1. OurControl needs
	// Control.
	Control    string `json:"control"`
	OurControl string `json:"ourControl"`
	// OrControl names a case like Control. The gate is also kept if the median ratio is at most the
	// control's largest ratio of a round. It needs AtMost.
	OrControl string `json:"orControl"`
	// Calm restricts the gate to runs with a steady base; nil means all runs.
	Calm *calm `json:"calm"`
	// Steady restricts the gate to runs in which another case was steady; nil means all runs.
	Steady *steady `json:"steady"`
	// Best judges our best round instead of the median. It needs Within.
	Best bool `json:"best"`
	// IfMeasured reports whether the gate is left out, not missed, if the result lacks the case.
	IfMeasured  bool `json:"ifMeasured"`
	NoPlaintext bool `json:"noPlaintext"`
}

// String returns the gate as its file has it, for errors.
func (g limit) String() string {
	text, err := json.Marshal(g)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// calm restricts a limit to runs in which the base of Case, a latency, has a 99th percentile of at
// most Tail times its median. In other runs the gate is not judged or, with Must, missed.
type calm struct {
	Case string  `json:"case"`
	Tail float64 `json:"tail"`
	Must bool    `json:"must"`
}

// steady restricts a limit to runs in which the rounds of the base of Case differ by at most Share
// of their median. In other runs the gate is not judged.
type steady struct {
	Case  string  `json:"case"`
	Share float64 `json:"share"`
}

// link identifies a link by the base's median, its payload rate in clear, in Mbit/s.
type link struct {
	Name        string  `json:"name"`
	BaseAtLeast float64 `json:"baseAtLeast"`
	BaseAtMost  float64 `json:"baseAtMost"`
}

// readLimits returns the parsed gates.json, which it parses once.
var readLimits = sync.OnceValues(func() (*allLimits, error) { return parseLimits(gatesFile) })

func parseLimits(b []byte) (*allLimits, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	var a allLimits
	if err := d.Decode(&a); err != nil {
		return nil, fmt.Errorf("gates: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("gates: more than one JSON value")
	}

	seen := map[string]bool{}
	for i := range a.Suites {
		l := &a.Suites[i]
		if l.Suite == "" || seen[l.Suite] {
			return nil, fmt.Errorf("gates: suite %q has no name or is there twice", l.Suite)
		}
		seen[l.Suite] = true
		var err error
		if l.Every, err = expand(l.Every); err != nil {
			return nil, fmt.Errorf("gates of %s: %w", l.Suite, err)
		}
		for name, p := range l.Profiles {
			if p.Gates, err = expand(p.Gates); err != nil {
				return nil, fmt.Errorf("gates of %s: %w", l.Suite, err)
			}
			l.Profiles[name] = p
		}
		if err := l.check(); err != nil {
			return nil, fmt.Errorf("gates of %s: %w", l.Suite, err)
		}
	}
	return &a, nil
}

// expand replaces each gate that has For by one gate per combination of values; see limit.For. A
// name without values, or that the gate does not have, is an error.
func expand(gates []limit) ([]limit, error) {
	var out []limit
	for _, g := range gates {
		lists := g.For
		g.For = nil
		texts := []string{g.String()}
		for _, name := range slices.Sorted(maps.Keys(lists)) {
			if name == "" || len(lists[name]) == 0 || !strings.Contains(texts[0], name) {
				return nil, fmt.Errorf("%s: no values for %q, or no place for them", g, name)
			}
			var next []string
			for _, text := range texts {
				for _, value := range lists[name] {
					next = append(next, strings.ReplaceAll(text, name, value))
				}
			}
			texts = next
		}

		for _, text := range texts {
			var one limit
			if err := json.Unmarshal([]byte(text), &one); err != nil {
				return nil, fmt.Errorf("%s: %w", text, err)
			}
			out = append(out, one)
		}
	}
	return out, nil
}

// check returns an error if limits contradict one another or are incomplete.
func (l *limits) check() error {
	all := slices.Clone(l.Every)
	owner := map[string]string{}
	for name, p := range l.Profiles {
		all = append(all, p.Gates...)
		for _, platform := range p.Platforms {
			if other := owner[platform]; other != "" || !slices.Contains(platforms, platform) {
				return fmt.Errorf("profile %q: platform %q is unknown or also in profile %q", name,
					platform, other)
			}
			owner[platform] = name
		}
	}

	for _, g := range all {
		set := 0
		for _, limit := range []*float64{g.AtLeast, g.AtMost, g.Within} {
			if limit != nil {
				set++
			}
		}
		if g.Control != "" && g.AtLeast == nil && g.AtMost == nil {
			return fmt.Errorf("%s: control needs atLeast or atMost", g)
		}
		if g.OurControl != "" && g.Control == "" {
			return fmt.Errorf("%s: ourControl needs control", g)
		}
		if g.OrControl != "" && g.AtMost == nil {
			return fmt.Errorf("%s: orControl needs atMost", g)
		}
		if g.Calm != nil && (g.Calm.Case == "" || g.Calm.Tail < 1) {
			return fmt.Errorf("%s: calm needs a case, and a tail of at least 1", g)
		}
		if g.Steady != nil && (g.Steady.Case == "" || g.Steady.Share <= 0) ||
			g.Best && g.Within == nil {
			return fmt.Errorf("%s: steady needs a case and a share, and best needs within", g)
		}
		if ofCase, leaks := g.Case != "" && set == 1 && !g.NoPlaintext, g.NoPlaintext &&
			g.Case == "" && set == 0; !ofCase && !leaks {
			return fmt.Errorf("%s: want a case with one limit, or noPlaintext", g)
		}
	}
	return nil
}
