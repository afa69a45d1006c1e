package droplog

import (
	"strings"
	"sync"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// Bounds of the rules that are counted.
const (
	MaxRules = 4096
	// MaxRulesOf bounds the rules of the policies of one namespace, or of the cluster.
	MaxRulesOf = 256
)

// counts counts samples of denied packets by rule. leftOut counts samples with a rule that is
// beyond a bound, or whose policy the sample does not name. The zero value is ready.
type counts struct {
	mu      sync.Mutex
	byRule  map[policy.RuleName]uint64
	rules   map[string]int // by namespace
	leftOut uint64
}

// NamespaceOf returns the namespace in the name of a policy, or "" for a ClusterNetworkPolicy.
func NamespaceOf(name string) string {
	namespace, _, namespaced := strings.Cut(name, "/")
	if !namespaced {
		return ""
	}
	return namespace
}

// add counts a sample for each policy that denied it.
func (d *counts) add(by Denier) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.byRule == nil {
		d.byRule, d.rules = map[policy.RuleName]uint64{}, map[string]int{}
	}
	beyond := by.More > 0
	for _, name := range by.Policies {
		r := policy.RuleName{Policy: name, Direction: by.Direction, Rule: by.Rule}
		namespace := NamespaceOf(name)
		if _, has := d.byRule[r]; !has {
			if len(d.byRule) >= MaxRules || d.rules[namespace] >= MaxRulesOf {
				beyond = true
				continue
			}
			d.rules[namespace]++
		}
		d.byRule[r]++
	}
	if beyond {
		d.leftOut++
	}
}

// retain keeps only the rules of these policies, and returns their counts.
func (d *counts) retain(policies map[string]bool) (kept map[policy.RuleName]uint64,
	leftOut uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	kept = map[policy.RuleName]uint64{}
	for r, n := range d.byRule {
		if policies[r.Policy] {
			kept[r] = n
			continue
		}
		delete(d.byRule, r)
		d.rules[NamespaceOf(r.Policy)]--
	}
	return kept, d.leftOut
}
