package firewall

import (
	"testing"

	"github.com/google/nftables/expr"
)

// TestExpressionsThatJudge has expressions that not every kernel takes: queues of kube-network-
// policies, and targets of iptables.
func TestExpressionsThatJudge(t *testing.T) {
	for name, tt := range map[string]struct {
		e           expr.Any
		judges, end bool // end: at postrouting
	}{
		"queue":                {&expr.Queue{Num: 100, Flag: expr.QueueFlagBypass}, true, true},
		"NFQUEUE":              {&expr.Target{Name: "NFQUEUE"}, true, true},
		"a target not known":   {&expr.Target{Name: "STEAL"}, true, true},
		"MARK":                 {&expr.Target{Name: "MARK"}, false, false},
		"MASQUERADE":           {&expr.Target{Name: "MASQUERADE"}, true, false},
		"a translation":        {&expr.NAT{}, true, false},
		"accept":               {&expr.Verdict{Kind: expr.VerdictAccept}, false, false},
		"drop":                 {&expr.Verdict{Kind: expr.VerdictDrop}, true, true},
		"a map of verdicts":    {&expr.Lookup{IsDestRegSet: true}, true, true},
		"a look-up in a set":   {&expr.Lookup{}, false, false},
		"a counter of matches": {&expr.Counter{}, false, false},
	} {
		for _, last := range []bool{false, true} {
			want := tt.judges
			if last {
				want = tt.end
			}
			if got, _ := (&walk{last: last}).judgment(tt.e); got != want {
				t.Errorf("%s, at postrouting %t: judges %t, want %t", name, last, got, want)
			}
		}
	}
}
