package session

import (
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/toolresult"
)

func TestLossesOfAFlowAreAtOneTime(t *testing.T) {
	type runs = []toolresult.LostRun
	at := func(seconds ...float64) (all runs) {
		for _, s := range seconds {
			all = append(all, toolresult.LostRun{At: s * 1e3, Records: 1})
		}
		return all
	}
	long := toolresult.LostRun{At: 60e3, Records: 20}

	for name, tt := range map[string]struct {
		lost runs
		ok   bool
	}{
		"nothing is lost":                     {nil, true},
		"strays alone":                        {at(0, 200), true},
		"one time, and strays":                {append(at(0, 55, 65, 200), long), true},
		"just within the limit":               {append(at(30, 90, 0, 200), long), true},
		"one stray too many, before":          {append(at(0, 10, 20), long), false},
		"one stray too many, after":           {append(at(0, 91, 200), long), false},
		"the longest is not the first":        {append(runs{long}, at(1, 2, 3)...), false},
		"small losses again and again":        {at(0, 40, 80, 120, 160), false},
		"small losses at one time, no longer": {at(0, 5, 10, 15, 29), true},
	} {
		f := Flow{Flow: toolresult.Flow{Proto: "udp", To: "192.0.2.1:7", Lost: tt.lost}}
		if err := f.lostAtOnce(30 * time.Second); (err == nil) != tt.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// If answers are late, six flows can lose 526 of 3,398 records, 22 seconds of each flow, although
// all gaps between answers are at most 4 s. Therefore the number of lost records is bounded in
// addition to the gap.
func TestLossesOfAFlowAreBounded(t *testing.T) {
	const most = 42 // the records of a flow in ten seconds, and two more
	for _, tt := range []struct {
		proto string
		lost  uint64
		ok    bool
	}{
		{"udp", 0, true},
		{"udp", most, true},
		{"udp", most + 1, false},
		{"udp", 526 / 6, false},
		{"tcp", 526 / 6, true}, // a TCP connection does not lose records
	} {
		f := Flow{interval: FlowInterval, Flow: toolresult.Flow{Proto: tt.proto, To: "192.0.2.1:7",
			Sent: 3398 / 6, Answered: 3398/6 - tt.lost, MaxGapMillis: 4e3,
			Lost: []toolresult.LostRun{{At: 60e3, Records: tt.lost}}}}
		if err := f.lostAtOnce(30 * time.Second); err != nil {
			t.Errorf("%d %s: %v", tt.lost, tt.proto, err)
		}
		if err := f.LostAtMost(10 * time.Second); (err == nil) != tt.ok {
			t.Errorf("%d of %s lost: %v", tt.lost, tt.proto, err)
		}
	}
}
