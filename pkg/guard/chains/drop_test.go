package chains

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables/expr"

	"github.com/kubeveil/kubeveil/internal/nft"
)

// Packets are dropped only in the chains of reasons, and each of these chains is complete.
func TestEachDropIsCountedAndSampled(t *testing.T) {
	for _, table := range []*nft.Table{Settings{}.Table(), Pods()} {
		there := func(name string) bool {
			return slices.ContainsFunc(table.Chains,
				func(c nft.Chain) bool { return c.Name == name })
		}

		drops := 0
		for _, c := range table.Chains {
			ends := strings.HasPrefix(c.Name, dropPrefix)
			for _, e := range slices.Concat(c.Rules...) {
				v, ok := e.(*expr.Verdict)
				if !ok {
					continue
				}
				if v.Chain != "" && !there(v.Chain) {
					t.Errorf("chain %s leads to %s, which does not exist", c.Name, v.Chain)
				}
				if v.Kind == expr.VerdictDrop && !ends {
					t.Errorf("chain %s drops without a reason", c.Name)
				}
			}
			sampled := slices.ContainsFunc(c.Rules, isSample)
			if !ends {
				if sampled && !strings.HasPrefix(c.Name, countPrefix) {
					t.Errorf("chain %s samples packets that may pass", c.Name)
				}
				continue
			}
			drops++
			last := c.Rules[len(c.Rules)-1][0]
			_, resets := last.(*expr.Reject)
			if v, ok := last.(*expr.Verdict); !resets && (!ok || v.Kind != expr.VerdictDrop) {
				t.Errorf("chain %s does not end with a drop or a reset", c.Name)
			}
			shared := slices.Contains([]string{dropPrefix + Midstream, dropPrefix + SiteNotExported},
				c.Name) // with a chain that counts only
			if !shared && (!sampled || len(c.Rules) != 3) {
				t.Errorf("chain %s has %d rules, samples: %t", c.Name, len(c.Rules), sampled)
			}
		}
		if want := len(table.Counters) - strings.Count(strings.Join(table.Counters, " "),
			MarksRestored); drops != want {
			t.Errorf("table %s has %d chains that drop, want %d", table.Name, drops, want)
		}
	}
}

// On a kernel without nflog, only the sampling is missing.
func TestUnsampledTableStillCountsAndDrops(t *testing.T) {
	for _, plan := range []func() *nft.Table{Settings{}.Table, Pods} {
		full, plain := plan(), plan()
		Unsampled(plain)
		text := plain.String()
		for _, word := range []string{"Log{", "Limit{", "Dynset{", sharePrefix} {
			if strings.Contains(text, word) {
				t.Errorf("table %s still has %s", plain.Name, word)
			}
		}
		if len(plain.Chains) != len(full.Chains) || len(plain.Counters) != len(full.Counters) ||
			strings.Count(text, "Objref{") != strings.Count(full.String(), "Objref{") {
			t.Errorf("table %s lost more than its samples", plain.Name)
		}
	}
}
