package reach

import (
	"testing"
	"time"
)

// Each step is an echo that is answered (.), or missed without another packet (x) or with one (o).
func TestPeerIsDeadBySituation(t *testing.T) {
	for name, c := range map[string]struct {
		steps string
		dead  bool
	}{
		"it answers":                          {"....", false},
		"two are lost":                        {".xx", false},
		"three are lost":                      {".xxx", true},
		"it never answered":                   {"xxx", true},
		"two are lost, twice":                 {".xx.xx", false},
		"it answers again":                    {".xxxx.", false},
		"another packet came":                 {".xxo", false},
		"a packet came before the first loss": {".oxx", true},
		"packets, but no answers":             {".ooooooo", false},
		"packets, and then none":              {".oooxxx", true},
		"a packet after it was dead":          {"xxxxo", false},
	} {
		t.Run(name, func(t *testing.T) {
			var p target
			now := time.Unix(1000, 0)
			heard := now
			p.next()
			for _, s := range c.steps {
				now = now.Add(time.Second)
				if s == '.' {
					p.answered(p.seq)
				}
				if s == 'o' {
					heard = now.Add(-time.Millisecond)
				}
				if p.next() {
					p.heard(heard, now)
				}
			}
			if p.dead != c.dead {
				t.Errorf("dead is %t after %s", p.dead, c.steps)
			}
		})
	}
}

// An answer may come later than the next echo, but not from long ago.
func TestLateAnswersCount(t *testing.T) {
	for late, alive := range []bool{true, true, true, false, false} {
		p := target{seq: 1<<16 - 2}
		for range 5 {
			p.next()
		}
		p.missed = 3
		p.answered(p.seq - uint16(late))
		if (p.missed == 0) != alive {
			t.Errorf("an answer %d echoes late: alive is %t", late, !alive)
		}
	}
}
