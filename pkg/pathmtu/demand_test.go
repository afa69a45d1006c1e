package pathmtu

import (
	"testing"
	"time"
)

func TestOnlyTrafficIsWorthAProbe(t *testing.T) {
	start := time.Unix(1_700_000_000, 0)
	type look struct {
		after  time.Duration // since start
		sent   int64
		silent bool
		want   bool // and if so, the probe is over at once
	}

	for _, tc := range []struct {
		name  string
		looks []look
	}{
		{"never any", []look{{0, 0, false, false}, {time.Hour, 0, false, false}}},
		{"traffic from before this process",
			[]look{{0, 1 << 20, false, true}, {time.Minute, 1 << 20, false, false}}},
		{"its own probe, seen later, is none", []look{
			{0, 5000, false, true}, {5 * time.Second, 8500, false, false},
			{15 * time.Second, 8532, false, false}, {time.Hour, 8532, false, false},
		}},
		{"answers to the peer's probes are none", []look{
			{0, 5000, false, true}, {15 * time.Second, 6700, false, false},
			{time.Minute, 6900, false, false}, {10 * time.Minute, 8700, false, false},
		}},
		{"traffic goes on", []look{
			{0, 5000, false, true}, {20 * time.Second, 50000, false, false},
			{40 * time.Second, 60000, false, true}, {41 * time.Second, 70000, false, false},
		}},
		{"the device is made again", []look{{0, 50000, false, true},
			{time.Minute, 100, false, false}, {2 * time.Minute, 5000, false, true}}},
		{"a peer that does not answer", []look{{0, 148, true, true}, {time.Second, 300, true, true},
			{time.Minute, 400, false, false}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var d demand
			for i, l := range tc.looks {
				now := start.Add(l.after)
				if got := d.due(Traffic{Sent: l.sent, At: now, Silent: l.silent}); got != l.want {
					t.Fatalf("look %d: due %t, want %t (%+v)", i, got, l.want, d)
				}
				if l.want {
					d.probed(now)
				}
			}
		})
	}
}
