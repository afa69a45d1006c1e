package passage

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestProbesAreDue(t *testing.T) {
	start := time.Unix(1_000_000, 0)
	never, passed := Proof{}, Proof{at: start, passed: true}
	dropped, doubted := passed, passed
	dropped.passed, doubted.doubts = false, 1
	changed := passed
	changed.filtersChanged = true
	again, failing := changed, changed
	again.changedAt, failing.passed = start, false

	for _, tt := range []struct {
		situation string
		p         Proof
		after     time.Duration
		legacy    bool
		want      bool
	}{
		{"the first", never, 0, false, true},
		{"passed", passed, 4 * time.Minute, false, false},
		{"passed long ago", passed, proofInterval, false, true},
		{"passed, iptables-legacy has a filter", passed, proofLegacy, true, true},
		{"passed a moment ago, iptables-legacy has a filter", passed, time.Second, true, false},
		{"dropped", dropped, proofRetry, false, true},
		{"dropped a moment ago", dropped, time.Second, false, false},
		{"without a result", doubted, proofRetry, false, true},
		{"a filter changed", changed, time.Second, false, true},
		{"filters change all the time", again, proofPause - time.Second, false, false},
		{"filters change again", again, proofPause, false, true},
		{"dropped, and filters change all the time", failing, time.Second, false, false},
	} {
		if got := tt.p.due(start.Add(tt.after), func() bool { return tt.legacy }); got != tt.want {
			t.Errorf("%s: due %t, want %t", tt.situation, got, tt.want)
		}
	}
}

func TestResultsOfProbesAreKept(t *testing.T) {
	var p Proof
	drops := fmt.Errorf("%w: 3 of 3", ErrDropped)
	unknown := errors.New("no result")
	now := time.Unix(1_000_000, 0)
	for _, step := range []struct {
		situation     string
		err           error
		problem, note string
	}{
		{"nothing is known yet", unknown, "", "no result"},
		{"passed", nil, "", ""},
		{"one without a result", unknown, "", ""},
		{"two", unknown, "", ""},
		{"three", unknown, "", "no result"},
		{"passed again", nil, "", ""},
		{"dropped", drops, "3 of 3", ""},
		{"without a result while dropped", unknown, "3 of 3", "no result"},
		{"passed in the end", nil, "", ""},
	} {
		p.take(now, step.err)
		if !strings.Contains(p.Problem, step.problem) || (p.Problem == "") != (step.problem == "") ||
			p.Note != step.note {
			t.Errorf("%s: problem %q, note %q", step.situation, p.Problem, p.Note)
		}
	}
}

// A change that was there before the first probe does not delay the next one.
func TestProbesOfChangesAreSpaced(t *testing.T) {
	p := Proof{filtersChanged: true}
	now := time.Unix(1_000_000, 0)
	p.take(now, nil)
	if p.filtersChanged || !p.changedAt.IsZero() {
		t.Errorf("after the first: %+v", p)
	}
	p.filtersChanged = true
	p.take(now, nil)
	if p.filtersChanged || p.changedAt != now {
		t.Errorf("after that of a change: %+v", p)
	}
}
