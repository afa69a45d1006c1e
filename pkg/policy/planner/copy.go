package planner

import (
	"maps"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/compile"
)

// Copy returns a Planner with the same objects, to try changes on. It makes the same plans. The two
// share objects and nothing that either of them changes.
func (p *Planner) Copy() *Planner {
	q := New(p.node)
	q.options, q.own, q.nodes = p.options, slices.Clone(p.own), maps.Clone(p.nodes)
	q.prefixes, q.nodeAddrs, q.inside = p.prefixes, p.nodeAddrs, p.inside
	q.ranges, q.attached = p.ranges, maps.Clone(p.attached)

	maps.Copy(q.namespaces, p.namespaces)
	for namespace, all := range p.policies {
		q.policies[namespace] = map[string]*compile.Namespaced{}
		for name, c := range all {
			q.serial++
			of := &compile.Namespaced{Policy: c.Policy, Serial: q.serial}
			if c.Over { // It denies until a policy of its namespace changes.
				of.Over, of.Problem, of.Sets = true, c.Problem, c.Sets
			}
			q.policies[namespace][name] = of
		}
	}
	for name, c := range p.cluster {
		q.serial++
		q.cluster[name] = &compile.Cluster{Policy: c.Policy, Serial: q.serial}
	}
	q.order = slices.SortedFunc(maps.Values(q.cluster), (*compile.Cluster).Before)
	for _, pod := range p.pods {
		q.PutPod(*pod)
	}
	return q
}

// HasNamespace reports whether a namespace was put.
func (p *Planner) HasNamespace(name string) bool { return p.namespaces[name] != nil }

// Namespaces returns the names of all namespaces, sorted.
func (p *Planner) Namespaces() []string { return slices.Sorted(maps.Keys(p.namespaces)) }

// Refs returns the NetworkPolicies of a namespace, or all ClusterNetworkPolicies if it is empty,
// sorted.
func (p *Planner) Refs(namespace string) (refs []policy.Ref) {
	for name := range p.policies[namespace] {
		refs = append(refs, policy.Ref{Kind: policy.KindNetworkPolicy,
			Namespace: namespace, Name: name})
	}
	if namespace == "" {
		for name := range p.cluster {
			refs = append(refs, policy.Ref{Kind: policy.KindClusterNetworkPolicy,
				Name: name})
		}
	}
	slices.SortFunc(refs, func(a, b policy.Ref) int {
		return strings.Compare(a.String(), b.String())
	})
	return refs
}
