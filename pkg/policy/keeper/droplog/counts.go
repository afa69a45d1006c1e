package droplog

import (
	"strings"
	"sync"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// Bounds of the rules whose denials are counted.
const (
	maxRules = 4096
	// maxRulesOf bounds the rules of the policies of one namespace, or of the cluster.
	maxRulesOf = 256
)

// counts counts samples of denied packets by rule. Samples of a rule beyond a bound are counted in
// leftOut only. The zero value is ready.
type counts struct {
	mu      sync.Mutex
	byRule  map[policy.RuleName]uint64
	rules   map[string]int // by namespace
	leftOut uint64
}

func namespaceOf(name string) string {
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
	for _, name := range by.Policies {
		r := policy.RuleName{Policy: name, Direction: by.Direction, Rule: by.Rule}
		namespace := namespaceOf(name)
		if _, has := d.byRule[r]; !has {
			if len(d.byRule) >= maxRules || d.rules[namespace] >= maxRulesOf {
				d.leftOut++
				continue
			}
			d.rules[namespace]++
		}
		d.byRule[r]++
	}
}

// retain forgets the rules of all policies except these, and returns the counts of the others.
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
		d.rules[namespaceOf(r.Policy)]--
	}
	return kept, d.leftOut
}
