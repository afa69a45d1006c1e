package pathmtu

import (
	"testing"
	"time"
)

func TestOnlyTrafficIsWorthAProbe(t *testing.T) {
	start := time.Unix(1_700_000_000, 0)
	type look struct {
		after time.Duration // since start
		sent  int64
		want  bool // and if so, the probe is over at once
	}

	for _, tc := range []struct {
		name  string
		looks []look
	}{
		{"never any", []look{{0, 0, false}, {time.Hour, 0, false}}},
		{"traffic from before this process",
			[]look{{0, 1 << 20, true}, {time.Minute, 1 << 20, false}}},
		{"its own probe, seen later, is none", []look{
			{0, 5000, true}, {5 * time.Second, 8500, false},
			{15 * time.Second, 8532, false}, {time.Hour, 8532, false},
		}},
		{"answers to the peer's probes are none", []look{
			{0, 5000, true}, {15 * time.Second, 6700, false},
			{time.Minute, 6900, false}, {10 * time.Minute, 8700, false},
		}},
		{"traffic goes on", []look{
			{0, 5000, true}, {20 * time.Second, 50000, false},
			{40 * time.Second, 60000, true}, {41 * time.Second, 70000, false},
		}},
		{"the device is made again", []look{{0, 50000, true},
			{time.Minute, 100, false}, {2 * time.Minute, 5000, true}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var d demand
			for i, l := range tc.looks {
				now := start.Add(l.after)
				if got := d.due(Traffic{Sent: l.sent, At: now}); got != l.want {
					t.Fatalf("look %d: due %t, want %t (%+v)", i, got, l.want, d)
				}
				if l.want {
					d.probed(now)
				}
			}
		})
	}
}
