package planner

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// denials returns the policies that select a pod of this node and cannot be enforced as they are
// written, sorted by name.
func (p *Planner) denials() []policy.Denial {
	by := map[policy.Name]string{}
	for _, key := range slices.SortedFunc(maps.Keys(p.members), func(a, b policy.Key) int {
		return strings.Compare(a.Name.String(), b.Name.String())
	}) {
		m := p.members[key]
		large := ""
		if m.Problem != "" {
			large = fmt.Sprintf("pod %s: %s", key.Name, m.Problem)
		}
		for _, name := range m.Policies {
			text := large
			if c := p.policies[name.Namespace][name.Name]; c != nil && c.Problem != "" {
				text = "it denies everything that it isolates: " + c.Problem
			}
			if text != "" && by[name] == "" {
				by[name] = text
			}
		}
		for _, name := range m.ClusterPolicies {
			text := large
			if c := p.cluster[name]; c != nil && c.Problem != "" {
				text = c.Problem
			}
			if n := (policy.Name{Name: name}); text != "" && by[n] == "" {
				by[n] = text
			}
		}
	}

	var out []policy.Denial
	for _, name := range slices.SortedFunc(maps.Keys(by), func(a, b policy.Name) int {
		return strings.Compare(a.String(), b.String())
	}) {
		d := policy.Denial{Name: name, Problem: by[name]}
		if c := p.policies[name.Namespace][name.Name]; c != nil {
			d.Object = c.Policy.Object
		} else if c := p.cluster[name.Name]; name.Namespace == "" && c != nil {
			d.Object = c.Policy.Object
		}
		out = append(out, d)
	}
	return out
}
