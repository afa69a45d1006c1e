package bench

import (
	"slices"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
)

const someLimits = `{"suites":[{"suite":"s","every":[{"case":"a","atLeast":0.97},{"case":"rr","atMost":1.05},{"noPlaintext":true}],
"profiles":{"emulated":{"platforms":["emulated"],"mtus":[1500,8896],"gates":[{"case":"capped","mtu":1500,"atLeast":0.94}]},
"hardware":{"platforms":["vm","metal"],"gates":[{"case":"time","within":1500,"ifMeasured":true},{"case":"big","mtu":8896,"atLeast":0.8,"link":{"name":"10 Gbit/s","baseAtLeast":7000,"baseAtMost":10000}}]}}}]}`

func measured(name string, mtu int, ratio, base float64) Case {
	b := Stat{Median: base, Min: base, Max: base, N: 5}
	return Case{Name: name, MTU: mtu, Unit: Mbps, Ours: b, Base: &b, BaseName: "bare",
		Ratio: &Ratio{ratio, ratio, ratio}}
}

func incomplete(c Case) Case {
	c.Incomplete = true
	return c
}

func TestJudge(t *testing.T) {
	good := &Leaks{Frames: 10, ControlPlaintext: 3}
	for name, tt := range map[string]struct {
		result Result
		missed []string
		gates  int
	}{
		"everything kept": {Result{Platform: Emulated, Leaks: good, Cases: []Case{
			measured("a", 1500, 1, 1), measured("a", 8896, 0.98, 1), measured("rr", 1500, 1, 1),
			measured("rr", 8896, 1, 1), measured("capped", 1500, 0.95, 1),
		}}, nil, 6},
		"an MTU that was not measured": {Result{Platform: Emulated, Leaks: good, Cases: []Case{
			measured("a", 1500, 1, 1), measured("rr", 1500, 1, 1), measured("rr", 8896, 1, 1),
			measured("capped", 1500, 0.95, 1),
		}}, []string{"a, MTU 8896"}, 6},
		"too slow and too late": {Result{Platform: VM, Leaks: good, Cases: []Case{
			measured("a", 1460, 0.96, 1), measured("rr", 1460, 1.06, 1),
		}}, []string{"a, MTU 1460, against bare", "rr, MTU 1460, against bare"}, 3},
		"a link of another rate is not judged": {Result{Platform: Metal, Leaks: good, Cases: []Case{
			measured("a", 8896, 1, 1), measured("rr", 8896, 1, 1),
			measured("big", 8896, 0.3, 25000),
		}}, nil, 3},
		"a link of that rate is": {Result{Platform: Metal, Leaks: good, Cases: []Case{
			measured("a", 8896, 1, 1), measured("rr", 8896, 1, 1), measured("big", 8896, 0.3, 9000),
		}}, []string{"big, MTU 8896, link of 10 Gbit/s, against bare"}, 4},
		"nothing measured": {Result{Platform: VM},
			[]string{"a", "rr", "zero plaintext on the wire"}, 3},
		"a run that ended early": {Result{Platform: VM, Leaks: good, Cases: []Case{
			incomplete(measured("a", 1460, 1, 1)), measured("rr", 1460, 1, 1),
			incomplete(measured("time", 0, 1, 1)),
		}}, []string{"a, MTU 1460, against bare", "time"}, 4},
		"too long": {Result{Platform: VM, Leaks: good, Cases: []Case{
			measured("a", 1460, 1, 1), measured("rr", 1460, 1, 1), measured("time", 0, 1, 1501),
		}}, []string{"time"}, 4},
		"just not too long": {Result{Platform: VM, Leaks: good, Cases: []Case{
			measured("a", 1460, 1, 1), measured("rr", 1460, 1, 1), measured("time", 0, 1, 1500),
		}}, nil, 4},
		"an oracle that may be blind": {Result{Platform: VM, Leaks: &Leaks{Frames: 9},
			Cases: []Case{
				measured("a", 1500, 1, 1), measured("rr", 1500, 1, 1),
			}}, []string{"zero plaintext on the wire"}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := parseLimits([]byte(someLimits))
			errtest.Must(t, err)
			gates, err := l.suite("s").judge(&tt.result)
			errtest.Must(t, err)

			var missed []string
			for _, g := range gates {
				if !g.OK {
					missed = append(missed, g.Name)
				}
			}

			if len(gates) != tt.gates || !slices.Equal(missed, tt.missed) {
				t.Errorf("%d gates, missed %q; want %d and %q", len(gates), missed, tt.gates,
					tt.missed)
			}
		})
	}
}

// Limits with an AEAD apply only to results with that AEAD. A result with an AEAD that has no
// limits is refused.
func TestJudgeByAEAD(t *testing.T) {
	a, err := parseLimits([]byte(`{"suites":[{"suite":"s","every":[{"case":"a","within":9}],
"profiles":{"n":{"platforms":["namespaces"],"gates":[
{"case":"a","aead":"avx512","within":2},{"case":"a","aead":"x/crypto","within":4}]}}}]}`))
	errtest.Must(t, err)
	r := &Result{Platform: Namespaces,
		Cases: []Case{{Name: "a", Unit: Millisecond, Ours: Summarize([]float64{3})}}}
	for aead, missed := range map[string]int{"avx512": 1, "x/crypto": 0} {
		r.AEAD = aead
		gates, err := a.suite("s").judge(r)
		errtest.Must(t, err)
		r.Gates = gates
		if len(gates) != 2 || len(r.Missed()) != missed {
			t.Errorf("%s: gates %+v, want 2 of which %d are missed", aead, gates, missed)
		}
	}
	for _, aead := range []string{"", "avx2"} {
		r.AEAD = aead
		if _, err := a.suite("s").judge(r); err == nil {
			t.Errorf("AEAD %q is judged by the limits of no AEAD", aead)
		}
	}
}

func TestJudgeWithoutProfile(t *testing.T) {
	if _, err := Judge(&Result{Platform: Namespaces}, "bench-cluster"); err == nil ||
		!strings.Contains(err.Error(), "namespaces") {
		t.Errorf("error %v", err)
	}
	own := []Gate{{Name: "g", Want: "1", Got: "2"}}
	if got, err := Judge(&Result{Platform: Namespaces, Gates: own}, "bench-lab"); err != nil ||
		!slices.Equal(got, own) {
		t.Errorf("%v, %v: want the gates that the result has", got, err)
	}
}

// A gate with lists stands for a gate of each combination of their values.
func TestGatesForEachValue(t *testing.T) {
	a, err := parseLimits([]byte(`{"suites":[{"suite":"s","every":[
{"for":{"A":["a","b"]},"case":"A_every","within":1}],"profiles":{"n":{"gates":[
{"case":"first","within":1},
{"for":{"A":["a","b"],"B":["","_p99"]},"case":"A_x.B","atMost":1.5,"orControl":"A_again.B",
 "calm":{"case":"A","tail":2}}]}}}]}`))
	errtest.Must(t, err)
	var got []string
	s := a.suite("s")
	for _, g := range append(s.Every, s.Profiles["n"].Gates...) {
		name := g.Case
		if g.Calm != nil {
			name += " " + g.OrControl + " " + g.Calm.Case
		}
		got = append(got, name)
	}
	want := []string{"a_every", "b_every", "first", "a_x. a_again. a", "a_x._p99 a_again._p99 a",
		"b_x. b_again. b", "b_x._p99 b_again._p99 b"}
	if !slices.Equal(got, want) {
		t.Errorf("gates %q, want %q", got, want)
	}
}

func TestParseLimits(t *testing.T) {
	if _, err := readLimits(); err != nil {
		t.Errorf("gates.json: %v", err)
	}
	for _, platform := range []string{Emulated, VM, SEVSNP, TDX, Metal} {
		if name, err := ProfileOf("bench-cluster", platform); name == "" || err != nil {
			t.Errorf("no profile for %s: %v", platform, err)
		}
	}

	gate := func(text string) string {
		return `{"suites":[{"suite":"s","every":[{` + text + `}]}]}`
	}
	profiles := func(text string) string {
		return `{"suites":[{"suite":"s","profiles":{` + text + `}}]}`
	}
	for name, text := range map[string]string{
		"two limits":              gate(`"case":"a","atLeast":1,"atMost":2`),
		"no limit":                gate(`"case":"a"`),
		"an unknown word":         gate(`"case":"a","atleast_":1`),
		"a platform of two":       profiles(`"x":{"platforms":["vm"]},"y":{"platforms":["vm"]}`),
		"an unknown platform":     profiles(`"x":{"platforms":["moon"]}`),
		"a limit and a ratio":     gate(`"case":"a","atLeast":1,"within":2`),
		"a suite twice":           `{"suites":[{"suite":"s"},{"suite":"s"}]}`,
		"a control of no ratio":   gate(`"case":"a","within":1,"control":"c"`),
		"a control of ours alone": gate(`"case":"a","atMost":1,"ourControl":"c"`),
		"a suite without name":    `{"suites":[{}]}`,
		"more than one document":  `{}{}`,
		"a list without values": `{"suites":[{"suite":"s","every":[
{"for":{"A":[]},"case":"A","within":1}]}]}`,
		"values without a place": `{"suites":[{"suite":"s","every":[
{"for":{"A":["b"]},"case":"c","within":1}]}]}`,
		"values without a name": `{"suites":[{"suite":"s","every":[
{"for":{"":["b"]},"case":"c","within":1}]}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := parseLimits([]byte(text)); err == nil {
				t.Error("no error")
			}
		})
	}
}

func FuzzParseLimits(f *testing.F) {
	f.Add([]byte(someLimits))
	f.Fuzz(func(_ *testing.T, b []byte) {
		if l, err := parseLimits(b); err == nil {
			for i := range l.Suites {
				_, _ = l.Suites[i].judge(&Result{Platform: VM})
			}
		}
	})
}

func TestJudgeKeepsOwnGatesOnce(t *testing.T) {
	a, err := parseLimits(
		[]byte(
			`{"suites":[{"suite":"s","own":true,"every":[{"case":"a","within":5,"ifMeasured":true}],
		"profiles":{"namespaces":{"platforms":["namespaces"]}}}]}`))
	errtest.Must(t, err)
	r := &Result{Platform: Namespaces, Gates: []Gate{{Name: "own"}},
		Cases: []Case{{Name: "a", Unit: Percent, Ours: Summarize([]float64{7})}}}
	for range 2 {
		gates, err := a.suite("s").judge(r)
		errtest.Must(t, err)
		if len(gates) != 2 || gates[0].Name != "a" || gates[0].OK || gates[1].Name != "own" {
			t.Errorf("gates are %+v, want a missed gate a, and the gate own", gates)
		}
		r.Gates = gates
	}
}

// A gate with controls of both sides is judged only if neither spreads as much as its margin.
func TestJudgeByControlsOfBothSides(t *testing.T) {
	a, err := parseLimits([]byte(`{"suites":[{"suite":"s","every":[{"case":"a","atMost":0.7,
		"control":"base","ourControl":"ours"}],
		"profiles":{"namespaces":{"platforms":["namespaces"]}}}]}`))
	errtest.Must(t, err)
	for name, tt := range map[string]struct {
		controls map[string]float64
		mark     string
	}{
		"both are quiet":    {map[string]float64{"base": 1.2, "ours": 0.8}, "✗"},
		"the base is noisy": {map[string]float64{"base": 1.4, "ours": 0.8}, "–"},
		"ours is noisy":     {map[string]float64{"base": 1.2, "ours": 0.6}, "–"},
		"no base":           {map[string]float64{"ours": 0.6}, "✗"},
		"no control":        {map[string]float64{"base": 1.4}, "✗"},
	} {
		r := &Result{Platform: Namespaces, Cases: []Case{measured("a", 0, 0.9, 1)}}
		for control, ratio := range tt.controls {
			r.Cases = append(r.Cases, measured(control, 0, ratio, 1))
		}
		gates, err := a.suite("s").judge(r)
		if errtest.Must(t, err); gates[0].Mark() != tt.mark {
			t.Errorf("%s: %+v, want %s", name, gates[0], tt.mark)
		}
	}
}

// A gate with a control is judged only if the control's ratio is closer to 1 than the limit in each
// round.
func TestJudgeByControl(t *testing.T) {
	a, err := parseLimits([]byte(`{"suites":[{"suite":"s","every":[{"case":"a","atMost":1.01,
		"control":"c"},{"case":"b","atLeast":0.9,"control":"c"}],
		"profiles":{"namespaces":{"platforms":["namespaces"]}}}]}`))
	errtest.Must(t, err)
	control := func(low, high float64) *Ratio { return &Ratio{(low + high) / 2, low, high} }
	for name, tt := range map[string]struct {
		a, b    float64
		control *Ratio
		marks   string
	}{
		"quiet and kept":          {1.005, 0.95, control(0.995, 1.005), "✓✓"},
		"quiet and missed":        {1.02, 0.85, control(0.995, 1.005), "✗✗"},
		"one round is too high":   {1.02, 0.95, control(0.995, 1.011), "–✓"},
		"one round is too low":    {1.005, 0.85, control(0.989, 1.001), "–✗"},
		"too noisy for both":      {1.02, 0.85, control(0.8, 1.3), "––"},
		"control not measured":    {1.005, 0.95, nil, "✗✗"},
		"quantities not measured": {0, 0, control(1, 1), "✗✗"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &Result{Platform: Namespaces}
			if tt.a > 0 {
				r.Cases = append(r.Cases, measured("a", 0, tt.a, 1), measured("b", 0, tt.b, 1))
			}
			if tt.control != nil {
				c := measured("c", 0, 1, 1)
				c.Ratio = tt.control
				r.Cases = append(r.Cases, c)
			}
			gates, err := a.suite("s").judge(r)
			errtest.Must(t, err)

			marks := ""
			for _, g := range gates {
				marks += g.Mark()
				if g.OK && g.NotJudged || g.NotJudged != strings.HasPrefix(g.Got, "not judged: ") {
					t.Errorf("%+v", g)
				}
			}
			r.Gates = gates
			if marks != tt.marks || len(r.Missed()) != strings.Count(marks, "✗") ||
				r.Judged() != 2-strings.Count(marks, "–") {
				t.Errorf("%s, %d missed, %d judged; want %s", marks, len(r.Missed()), r.Judged(),
					tt.marks)
			}
		})
	}
}

// A ratio above its limit is kept if the control had a round with at least that ratio. A limit with
// calm is not judged if the base's 99th percentile is too far above its median.
func TestJudgeBesideAControl(t *testing.T) {
	const limits = `{"suites":[{"suite":"s","every":[{"case":"ours","atMost":1.03,
"orControl":"again","calm":{"case":"again","tail":10,"must":%s}}],
"profiles":{"n":{"platforms":["namespaces"],"gates":[]}}}]}`
	latency := func(name string, ratio, worst, base float64) Case {
		c := measured(name, 0, ratio, base)
		c.Unit, c.Ratio.Max = Microsecond, worst
		return c
	}

	for name, tt := range map[string]struct {
		must          string
		cases         []Case
		ok, notJudged bool
	}{
		"below the limit": {"false", []Case{latency("ours", 1.02, 2, 300),
			latency("again", 1, 1.01, 300), latency("again_p99", 1, 1, 2900)}, true, false},
		"above, and the control was too": {"false", []Case{latency("ours", 1.05, 2, 300),
			latency("again", 1, 1.06, 300), latency("again_p99", 1, 1, 2900)}, true, false},
		"above, and the control was not": {"false", []Case{latency("ours", 1.07, 2, 300),
			latency("again", 1, 1.06, 300), latency("again_p99", 1, 1, 2900)}, false, false},
		"a long tail": {"false", []Case{latency("ours", 1, 2, 300),
			latency("again", 1, 1.06, 300), latency("again_p99", 1, 1, 3100)}, false, true},
		"a long tail that must be judged": {"true", []Case{latency("ours", 1, 2, 300),
			latency("again", 1, 1.06, 300), latency("again_p99", 1, 1, 3100)}, false, false},
		"no control": {"false", []Case{latency("ours", 1, 1, 300)}, false, false},
		"nothing": {"false", []Case{latency("again", 1, 1.06, 300),
			latency("again_p99", 1, 1, 300)}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := parseLimits([]byte(strings.Replace(limits, "%s", tt.must, 1)))
			errtest.Must(t, err)
			gates, err := a.suite("s").judge(&Result{Platform: Namespaces, Cases: tt.cases})
			if err != nil || len(gates) != 1 {
				t.Fatalf("%+v, %v", gates, err)
			}
			if g := gates[0]; g.OK != tt.ok || g.NotJudged != tt.notJudged {
				t.Errorf("%+v, want kept %v, not judged %v", g, tt.ok, tt.notJudged)
			}
		})
	}
}

// A limit of a case that must be steady is judged only if the rounds of its base are close to one
// another. The best round is judged where the limit says so.
func TestJudgeSteady(t *testing.T) {
	a, err := parseLimits([]byte(`{"suites":[{"suite":"s","every":[
{"case":"a","atMost":0.6,"steady":{"case":"a","share":0.2}},
{"case":"b","within":2,"best":true,"steady":{"case":"a","share":0.2}},{"case":"b","within":2}],
"profiles":{"n":{"platforms":["namespaces"],"gates":[]}}}]}`))
	errtest.Must(t, err)
	for base, wants := range map[[2]float64]struct{ missed, judged int }{
		{10, 11.9}: {1, 3}, {10, 14}: {1, 1},
	} {
		c, err := NewCase("a", 0, Millisecond, []float64{1, 1}, base[:], "loop")
		errtest.Must(t, err)
		r := &Result{Platform: Namespaces, Cases: []Case{c,
			{Name: "b", Unit: Millisecond, Ours: Summarize([]float64{2, 4})}}}
		r.Gates, err = a.suite("s").judge(r)
		errtest.Must(t, err)
		if len(r.Missed()) != wants.missed || r.Judged() != wants.judged {
			t.Errorf("rounds of %v: %d missed of %d judged, want %+v: %+v", base, len(r.Missed()),
				r.Judged(), wants, r.Gates)
		}
	}

	for _, bad := range []string{`{"case":"a","atMost":1,"best":true}`,
		`{"case":"a","atMost":1,"steady":{"case":"a"}}`} {
		if _, err := parseLimits([]byte(`{"suites":[{"suite":"s","every":[` + bad + `]}]}`)); err == nil {
			t.Errorf("%s is accepted", bad)
		}
	}
}
