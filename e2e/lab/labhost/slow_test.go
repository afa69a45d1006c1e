package labhost

import (
	"testing"
	"time"
)

func TestLimitsFollowTheLoad(t *testing.T) {
	for _, c := range []struct {
		loadavg string
		want    time.Duration
	}{
		{"0.05 20.00 30.00 1/252 1033\n", time.Second},
		{"1.90 0.00 0.00 3/252 1033\n", time.Second},
		{"12.58 20.00 19.06 17/252 1033\n", 8 * time.Second},
		{"24.00 0.00 0.00 1/252 1033\n", 12 * time.Second},
		{"", time.Second},
	} {
		if got := slowed(time.Second, c.loadavg, 2); got != c.want {
			t.Errorf("%q: %v, want %v", c.loadavg, got, c.want)
		}
	}
}
