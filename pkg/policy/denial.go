package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Denial is a policy that denies more than its text does, for pods of this node.
type Denial struct {
	// Name names the policy. A ClusterNetworkPolicy has no namespace.
	Name
	Object
	// Problem describes what is denied and why.
	Problem string
}

// denials returns the policies that select a pod of this node and cannot be enforced as they are
// written, sorted by name.
func (p *Planner) denials() []Denial {
	by := map[Name]string{}
	for _, key := range slices.SortedFunc(maps.Keys(p.members), func(a, b Key) int {
		return strings.Compare(a.Name.String(), b.Name.String())
	}) {
		m := p.members[key]
		large := ""
		if m.Problem != "" {
			large = fmt.Sprintf("pod %s: %s", key.Name, m.Problem)
		}
		for _, name := range m.Policies {
			text := large
			if c := p.policies[name.Namespace][name.Name]; c != nil && c.problem != "" {
				text = "it denies everything that it isolates: " + c.problem
			}
			if text != "" && by[name] == "" {
				by[name] = text
			}
		}
		for _, name := range m.ClusterPolicies {
			text := large
			if c := p.cluster[name]; c != nil && c.problem != "" {
				text = c.problem
			}
			if n := (Name{Name: name}); text != "" && by[n] == "" {
				by[n] = text
			}
		}
	}

	var out []Denial
	for _, name := range slices.SortedFunc(maps.Keys(by), func(a, b Name) int {
		return strings.Compare(a.String(), b.String())
	}) {
		d := Denial{Name: name, Problem: by[name]}
		if c := p.policies[name.Namespace][name.Name]; c != nil {
			d.Object = c.policy.Object
		} else if c := p.cluster[name.Name]; name.Namespace == "" && c != nil {
			d.Object = c.policy.Object
		}
		out = append(out, d)
	}
	return out
}
