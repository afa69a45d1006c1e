package suite

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
)

// subject is a run that records the calls of its methods.
type subject struct {
	*Run
	measured []string
	closed   int
}

func (s *subject) Close() error {
	s.closed++
	return nil
}

func (s *subject) Skips(gate string) bool { return gate == "revoke_few" }

func (s *subject) Report() *report.Report { return &report.Report{Title: "a test", Notes: s.Notes} }

// note returns a part that records its name, adds the case NAME_plan, and returns the error of end.
func note(name string, end func(context.Context) error) Part[*subject] {
	return Part[*subject]{Name: name, Run: func(s *subject, ctx context.Context) error {
		s.measured = append(s.measured, name)
		s.Add(name+"_plan", "planned", bench.Millisecond, 1, 2, 3)
		return end(ctx)
	}}
}

func good(context.Context) error { return nil }

var errBroken = errors.New("broken")

func broken(context.Context) error { return errBroken }

// choice returns the choice of parts for a run of one round.
func choice(t *testing.T, parts ...string) Choice {
	t.Helper()
	return Choice{Rounds: 1, Seed: 1, Parts: parts, Root: ".", Progress: t.Logf}
}

// runParts runs parts as a suite that has gates. It returns the subject and the results of Run.
func runParts(ctx context.Context, c Choice, began error,
	parts ...Part[*subject]) (*subject, *report.Report, error) {
	s := &subject{}
	rep, err := Suite[*subject]{Name: "bench-policy", Parts: parts}.Run(ctx, c,
		func(_ context.Context, r *Run) (*subject, error) {
			s.Run = r
			return s, began
		})
	return s, rep, err
}

// A part that fails becomes a missed gate, and the other parts are measured. Gates of parts and
// quantities that were not chosen are left out.
func TestFailedPartIsMissedGate(t *testing.T) {
	s, rep, err := runParts(t.Context(), choice(t, "revoke", "size"), nil,
		note("size", broken), note("change", good), note("revoke", good))
	errtest.Must(t, err)
	if want := []string{"size", "revoke"}; !slices.Equal(s.measured, want) {
		t.Errorf("measured %q, want %q", s.measured, want)
	}
	if s.closed != 1 {
		t.Errorf("closed %d times, want 1", s.closed)
	}

	gates := map[string]bench.Gate{}
	for _, g := range rep.Result.Gates {
		gates[g.Name] = g
	}
	if g := gates["part size"]; g.OK || g.Got != "broken" {
		t.Errorf("gate of the part that failed: %+v", g)
	}
	if g := gates["size_plan"]; !g.OK {
		t.Errorf("gate of a case that was measured before: %+v", g)
	}
	if g, judged := gates["revoke_all"]; !judged || g.OK {
		t.Errorf("gate of a case that was not measured: %+v", g)
	}
	for name := range gates {
		if strings.HasPrefix(name, "change") || name == "revoke_few" {
			t.Errorf("gate %s judges a part or quantity that was not chosen", name)
		}
	}
	if rep.Labels["size_plan"] != "planned" {
		t.Errorf("labels %v", rep.Labels)
	}
}

// If the suite measures elsewhere, a part that fails becomes a skip and an error, and the other
// parts are measured. A run that cannot begin has no report.
func TestFailedPartElsewhereIsSkipped(t *testing.T) {
	measure := func(began error) (*subject, *report.Report, error) {
		s := &subject{}
		rep, err := Suite[*subject]{Name: "bench-policy", Whole: true, Elsewhere: true,
			Parts: []Part[*subject]{note("size", broken), note("change", good)}}.Run(t.Context(),
			choice(t, "size", "change"), func(_ context.Context, r *Run) (*subject, error) {
				s.Run = r
				if began != nil {
					return s, began
				}
				return s, r.On(bench.Namespaces)
			})
		return s, rep, err
	}

	s, rep, err := measure(nil)
	if !errors.Is(err, errBroken) || rep == nil {
		t.Fatalf("report %v, error %v", rep, err)
	}
	if len(s.measured) != 2 || s.closed != 1 {
		t.Errorf("measured %q, closed %d times", s.measured, s.closed)
	}
	if skipped := rep.Result.Tests.Skipped; len(skipped) != 1 || skipped[0].Name != "size" ||
		!strings.Contains(skipped[0].Reason, "broken") {
		t.Errorf("skipped %+v", skipped)
	}
	for _, g := range rep.Result.Gates {
		if strings.HasPrefix(g.Name, "part ") {
			t.Errorf("gate %s, want the skip alone", g.Name)
		}
	}

	s, rep, err = measure(errBroken)
	if !errors.Is(err, errBroken) || rep != nil || s.closed != 1 {
		t.Errorf("report %v, error %v, closed %d times", rep, err, s.closed)
	}
}

// With Whole, all gates judge a run, also gates whose names begin with a part.
func TestWholeSuiteIsJudgedByAllGates(t *testing.T) {
	s := &subject{}
	rep, err := Suite[*subject]{Name: "bench-policy", Whole: true,
		Parts: []Part[*subject]{note("size", broken)}}.Run(t.Context(), choice(t, "size"),
		func(_ context.Context, r *Run) (*subject, error) {
			s.Run = r
			return s, nil
		})
	errtest.Must(t, err)
	for _, name := range []string{"part size", "size_plan", "change_pod_p99", "revoke_few"} {
		if n := len(slices.DeleteFunc(slices.Clone(rep.Result.Gates),
			func(g bench.Gate) bool { return g.Name != name })); n != 1 {
			t.Errorf("gate %s is there %d times, want once", name, n)
		}
	}
}

// A run that is interrupted or exceeds its limit returns a report and measures no further part.
func TestInterruptedRunHasReport(t *testing.T) {
	for name, tt := range map[string]struct {
		limit time.Duration
		want  string
	}{
		"interrupted": {0, "part size: context canceled"},
		"limit":       {time.Millisecond, "part size: it did not end within 1ms"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			c := choice(t, "size", "change")
			c.Limit = tt.limit

			s, rep, err := runParts(ctx, c, nil,
				note("size", func(ctx context.Context) error {
					if tt.limit == 0 {
						cancel()
					}
					<-ctx.Done()
					return ctx.Err()
				}), note("change", good))
			if err == nil || err.Error() != tt.want {
				t.Errorf("error %v, want %s", err, tt.want)
			}
			if rep == nil || rep.Result.Find("size_plan", 0) == nil {
				t.Errorf("report %+v, want the case that was measured", rep)
			}
			if len(s.measured) != 1 || s.closed != 1 {
				t.Errorf("measured %q, closed %d times", s.measured, s.closed)
			}
		})
	}
}

// A run that cannot begin returns a report without cases, and its subject is closed.
func TestRunThatCannotBegin(t *testing.T) {
	s, rep, err := runParts(t.Context(), choice(t, "size"), errBroken, note("size", good))
	if !errors.Is(err, errBroken) || rep == nil {
		t.Fatalf("report %v, error %v", rep, err)
	}
	if len(s.measured) != 0 || s.closed != 1 {
		t.Errorf("measured %q, closed %d times", s.measured, s.closed)
	}
}

// The run adds a note about other work of the machine before it measures a part.
func TestOtherWorkIsNoted(t *testing.T) {
	s := &subject{}
	rep, err := Suite[*subject]{Name: "bench-of-a-test", Look: 20 * time.Millisecond,
		Parts: []Part[*subject]{note("size", good)}}.Run(t.Context(), choice(t, "size"),
		func(_ context.Context, r *Run) (*subject, error) {
			s.Run = r
			return s, nil
		})
	errtest.Must(t, err)
	if len(rep.Notes) != 1 || !strings.HasPrefix(rep.Notes[0], "Before the run, other programs kept") {
		t.Errorf("notes %q", rep.Notes)
	}
}

func TestCheckOfChoice(t *testing.T) {
	s := Suite[*subject]{Parts: []Part[*subject]{note("size", good), note("change", good)}}
	for want, spoil := range map[string]func(*Choice){
		"":                                   func(*Choice) {},
		"0 rounds: want at least 1":          func(c *Choice) { c.Rounds = 0 },
		"no part is chosen":                  func(c *Choice) { c.Parts = nil },
		`part "a": want some of size,change`: func(c *Choice) { c.Parts = []string{"size", "a"} },
	} {
		c := choice(t, "change", "size")
		spoil(&c)
		got := ""
		if err := s.Check(c); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("error %q, want %q", got, want)
		}
	}
}

// Add and Compare add cases with their figures and labels.
func TestCasesAreAdded(t *testing.T) {
	r := &Run{Result: &bench.Result{}, Labels: map[string]string{}}
	r.Add("one", "", bench.Count, 4)
	if err := r.Compare("two", "beside", bench.Count, []float64{4}, []float64{2},
		"base"); err != nil {
		t.Fatal(err)
	}
	if err := r.Compare("bad", "", bench.Count, []float64{4}, []float64{0}, "base"); err == nil {
		t.Error("a base of 0 was accepted")
	}

	if one := r.Result.Find("one", 0); one == nil || one.Ours.Median != 4 || one.Base != nil {
		t.Errorf("%+v", one)
	}
	if two := r.Result.Find("two", 0); two == nil || two.Ratio.Median != 2 ||
		two.BaseName != "base" {
		t.Errorf("%+v", two)
	}
	if len(r.Result.Cases) != 2 || len(r.Labels) != 1 || r.Labels["two"] != "beside" {
		t.Errorf("%d cases, labels %v", len(r.Result.Cases), r.Labels)
	}
}
