package planner

import (
	"maps"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/compile"
)

// isSubject reports whether policies can judge a pod of this node. Without the labels of its
// namespace a pod may be the subject of any ClusterNetworkPolicy.
func (p *Planner) isSubject(pod *policy.Pod) bool {
	unsure := len(p.cluster) > 0 && p.namespaces[pod.Namespace] == nil
	return pod.Node == p.node && !pod.HostNetwork && !pod.Finished && pod.UID != "" && !unsure
}

// selecting returns the NetworkPolicies that select a pod, compiled and sorted.
func (p *Planner) selecting(pod *policy.Pod) []*compile.Namespaced {
	out := p.matching(pod)
	for _, c := range out {
		c.Compile()
	}
	return out
}

// matching returns the NetworkPolicies that select a pod, sorted.
func (p *Planner) matching(pod *policy.Pod) (out []*compile.Namespaced) {
	for _, c := range p.ordered(pod.Namespace) {
		if pod.Excess || c.Subjects().Matches(pod.Labels) {
			out = append(out, c)
		}
	}
	return out
}

// ordered returns the NetworkPolicies of a namespace, sorted by name. The caller must not change
// the result.
func (p *Planner) ordered(namespace string) []*compile.Namespaced {
	all := p.sorted[namespace]
	if all == nil && len(p.policies[namespace]) > 0 {
		all = slices.SortedFunc(maps.Values(p.policies[namespace]),
			func(a, b *compile.Namespaced) int {
				return strings.Compare(a.Policy.Name.Name, b.Policy.Name.Name)
			})
		p.sorted[namespace] = all
	}
	return all
}
