package planner

import (
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/compile"
)

// Copy returns a Planner with the same objects, to try changes on. It makes the same plans. The two
// Planners share only objects that neither of them changes.
func (p *Planner) Copy() *Planner {
	q := New(p.node)
	q.options, q.own, q.nodes = p.options, slices.Clone(p.own), maps.Clone(p.nodes)
	q.prefixes, q.nodeAddrs, q.inside = p.prefixes, p.nodeAddrs, p.inside
	q.ranges, q.attached = p.ranges, maps.Clone(p.attached)

	maps.Copy(q.namespaces, p.namespaces)
	for namespace, all := range p.policies {
		q.policies[namespace] = map[string]*compile.Namespaced{}
		for name, c := range all {
			of := c.Again(q.serial.Add(1))
			if c.Over { // It denies until a policy of its namespace changes.
				of = c.Denying(of.Serial, c.Problem)
				q.over[namespace] = append(q.over[namespace], name)
			}
			q.policies[namespace][name] = of
		}
	}
	for name, c := range p.cluster {
		q.cluster[name] = &compile.Cluster{Policy: c.Policy, Serial: q.serial.Add(1)}
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

// Labels returns the labels of a pod, or nil if it is not known or has more than are kept.
func (p *Planner) Labels(name policy.Name) map[string]string {
	if pod := p.pods[name]; pod != nil {
		return pod.Labels
	}
	return nil
}

// Selected returns the labels of the pods of a namespace that have all these labels, by name.
func (p *Planner) Selected(namespace string, labels map[string]string) iter.Seq2[string,
	map[string]string] {
	var all policy.Selector
	for key, value := range labels {
		all = append(all, policy.Requirement{Key: key, Op: policy.In, Values: []string{value}})
	}
	return func(yield func(string, map[string]string) bool) {
		for name, pod := range p.podsByNS[namespace] {
			if all.Matches(pod.Labels) && !yield(name.Name, pod.Labels) {
				return
			}
		}
	}
}
