package agent

import (
	"testing"
	"time"
)

func TestLostMarksAreAProblemForAWhile(t *testing.T) {
	var l lostMarks
	start := time.Unix(1_000_000, 0)
	for _, c := range []struct {
		situation string
		restored  uint64
		after     time.Duration
		problem   bool
	}{
		{"none was lost", 0, 0, false},
		{"the first", 3, time.Minute, true},
		{"no more since", 3, 10 * time.Minute, true},
		{"none for long", 3, 12 * time.Minute, false},
		{"again", 4, time.Hour, true},
	} {
		if got := l.problem(c.restored, start.Add(c.after)); (got != "") != c.problem {
			t.Errorf("%s: problem %q", c.situation, got)
		}
	}
}
