package pathmtu

import (
	"testing"
	"time"
)

// A path is judged by the results of a burst and of the single probe after it, as many times in a
// row as Tries.
func TestBurst(t *testing.T) {
	for name, tc := range map[string]struct {
		// bursts and singles report whether each burst and each single probe is answered. The last
		// value also holds for all later ones.
		bursts, singles []bool
		broken          bool
		sent            int // bursts until the verdict
	}{
		"all is carried":                {[]bool{true}, []bool{true}, false, 1},
		"segmented ones are lost":       {[]bool{false}, []bool{true}, true, 3},
		"the peer is silent":            {[]bool{false}, []bool{false}, false, 1},
		"lost once":                     {[]bool{false, true}, []bool{true}, false, 2},
		"lost twice":                    {[]bool{false, false, true}, []bool{true}, false, 3},
		"lost, and then silent for one": {[]bool{false}, []bool{true, false}, false, 2},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Unix(0, 0)
			b := burst{timing: Timing{Tries: 3, RetryMin: time.Second}}
			at := func(s []bool, i int) bool { return s[min(i, len(s)-1)] }
			broken := false
			bursts, singles := 0, 0
			b.begin(now)
			for {
				due, ok := b.due()
				if !ok {
					break
				}
				now = due
				var carried bool
				if b.count() == 1 {
					carried = at(tc.singles, singles)
					singles++
				} else {
					carried = at(tc.bursts, bursts)
					bursts++
				}
				if carried {
					broken = b.answered(now) || broken
				} else {
					b.unanswered(now)
				}
			}
			if broken != tc.broken || bursts != tc.sent {
				t.Errorf("broken %v after %d bursts, want %v after %d", broken, bursts, tc.broken,
					tc.sent)
			}
		})
	}
}
