package conformance

import (
	"testing"

	"github.com/kubeveil/kubeveil/e2e/conformance/upstream"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/leak"
)

// The command and `make gates` judge a run by the same gates, which the result contains.
func TestGatesOfAReport(t *testing.T) {
	const passes, breaks, known, away = upstream.Group + " passes", upstream.Group + " breaks",
		upstream.Group + " is known", upstream.Group + " needs a cloud"
	suite := Suite{Group: upstream.Group, reasons: compile([]reason{
		{fate: fails, pattern: "known", why: "ours: not done"},
		{fate: notRun, pattern: "needs a cloud", why: "no cloud"},
	})}

	for name, tt := range map[string]struct {
		outcomes map[string]upstream.Status
		missed   []string
	}{
		"all is well": {map[string]upstream.Status{passes: upstream.Passed}, nil},
		"a failure that is listed": {map[string]upstream.Status{passes: upstream.Passed,
			known: upstream.Failed}, nil},
		"one that is not": {map[string]upstream.Status{passes: upstream.Passed,
			breaks: upstream.Failed}, []string{bench.Unexplained(1).Name}},
		"nothing but known failures": {map[string]upstream.Status{known: upstream.Failed},
			[]string{"upstream specs that pass"}},
		"nothing that may be run": {nil, []string{"upstream specs that pass"}},
		"nothing but what skips itself": {map[string]upstream.Status{passes: upstream.Skipped},
			[]string{"upstream specs that pass"}},
	} {
		t.Run(name, func(t *testing.T) {
			specs := []string{away}
			for spec := range tt.outcomes {
				specs = append(specs, spec)
			}

			r := newReport(suite, specs, labFacts)
			for spec, status := range tt.outcomes {
				r.add(upstream.Outcome{Name: spec, Status: status, Message: "m"})
			}

			result, err := bench.New(bench.VM, "")
			errtest.Must(t, err)

			r.Result(result)
			errtest.Check(t, result.Validate())

			var missed []string
			for _, g := range result.Missed() {
				missed = append(missed, g.Name)
			}

			if len(missed) != len(tt.missed) || len(missed) == 1 && missed[0] != tt.missed[0] {
				t.Errorf("missed %q, want %q", missed, tt.missed)
			}
			if !bench.JudgesFailures(result.Gates) {
				t.Error("no gate judges failures")
			}
		})
	}
}

// If an oracle listened, its result is a gate. Findings without plaintext do not fail the gate,
// because some specs send such frames.
func TestGateOfTheWire(t *testing.T) {
	kinds := map[leak.Kind]uint64{leak.Tunnel: 7, leak.Unknown: 2}
	for name, tt := range map[string]struct {
		wire *leak.Result
		ok   bool
	}{
		"no listener":      {nil, true},
		"nothing in clear": {&leak.Result{Frames: 9, Kinds: kinds}, true},
		"something":        {&leak.Result{Frames: 9, Plaintext: 1, Kinds: kinds}, false},
		"frames missed":    {&leak.Result{Frames: 9, Dropped: 1, Kinds: kinds}, false},
		"no tunnel was seen": {&leak.Result{Frames: 9,
			Kinds: map[leak.Kind]uint64{leak.Control: 9}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			const passes = upstream.Group + " passes"
			r := newReport(Suite{Group: upstream.Group}, []string{passes}, labFacts)
			r.add(upstream.Outcome{Name: passes, Status: upstream.Passed})
			r.Wire = tt.wire
			result, err := bench.New(bench.VM, "")
			errtest.Must(t, err)
			if missed := r.Result(result).Missed(); (len(missed) == 0) != tt.ok {
				t.Errorf("missed %+v", missed)
			}
			errtest.Check(t, result.Validate())

			// `make gates` reads the same gates.
			gates, err := bench.Judge(result, "conformance")
			if err != nil || len(gates) != len(result.Gates) {
				t.Errorf("gates %+v, %v", gates, err)
			}
		})
	}
}
