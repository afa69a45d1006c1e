package planner

import (
	"fmt"
	"maps"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// findings holds the parts of a Plan that describe problems of policies.
type findings struct {
	problems        map[policy.Name]string
	clusterProblems map[string]string
	denials         []policy.Denial
	// selecting is the number of NetworkPolicies that select a pod of this node.
	selecting int
}

// findProblems returns the problems of the policies that select a pod of this node. A policy may
// select many pods, so it looks only at the NetworkPolicies of namespaces that changed.
func (p *Planner) findProblems() *findings {
	all := p.clusterFindings()
	changed := map[string][]policy.Key{}
	for key := range p.members {
		if p.findingsOf[key.Namespace] == nil {
			changed[key.Namespace] = append(changed[key.Namespace], key)
		}
	}
	for namespace, keys := range changed {
		p.findingsOf[namespace] = p.namespaceFindings(namespace, keys)
	}

	for _, of := range p.findingsOf {
		maps.Copy(all.problems, of.problems)
		all.denials = append(all.denials, of.denials...)
		all.selecting += of.selecting
	}
	slices.SortFunc(all.denials, func(a, b policy.Denial) int { return a.Name.Compare(b.Name) })
	return all
}

// namespaceFindings returns the problems of the NetworkPolicies of a namespace. keys are its
// members.
func (p *Planner) namespaceFindings(namespace string, keys []policy.Key) *findings {
	of := &findings{problems: map[policy.Name]string{}}
	// The text of a policy is the reason why it denies more than is written, or empty.
	texts := map[policy.Name]string{}
	for _, m := range p.byName(keys) {
		for _, name := range m.Policies {
			if text, seen := texts[name]; seen && (text != "" || m.large == "") {
				continue
			}
			texts[name] = m.large
			if c := p.policies[namespace][name.Name]; c != nil && c.Problem != "" {
				of.problems[name] = c.Problem
				texts[name] = "it denies everything that it isolates: " + c.Problem
			}
		}
	}

	of.selecting = len(texts)
	for name, text := range texts {
		if c := p.policies[namespace][name.Name]; c != nil && text != "" {
			of.denials = append(of.denials,
				policy.Denial{Name: name, Object: c.Policy.Object, Problem: text})
		}
	}
	return of
}

// clusterFindings returns the problems of the ClusterNetworkPolicies.
func (p *Planner) clusterFindings() *findings {
	of := &findings{problems: map[policy.Name]string{}, clusterProblems: map[string]string{}}
	if len(p.cluster) == 0 {
		return of
	}
	texts := map[string]string{}
	for _, m := range p.byName(slices.Collect(maps.Keys(p.members))) {
		for _, name := range m.ClusterPolicies {
			if texts[name] != "" {
				continue
			}
			texts[name] = m.large
			if c := p.cluster[name]; c != nil && c.Problem != "" {
				of.clusterProblems[name], texts[name] = c.Problem, c.Problem
			}
		}
	}

	for name, text := range texts {
		if c := p.cluster[name]; c != nil && text != "" {
			of.denials = append(of.denials, policy.Denial{Name: policy.Name{Name: name},
				Object: c.Policy.Object, Problem: text})
		}
	}
	return of
}

// problemMember is a member. large names the pod and its problem, or is empty.
type problemMember struct {
	*policy.Member
	large string
}

// byName returns the members with these keys, sorted by the names of their pods.
func (p *Planner) byName(keys []policy.Key) []problemMember {
	slices.SortFunc(keys, func(a, b policy.Key) int { return a.Name.Compare(b.Name) })
	out := make([]problemMember, len(keys))
	for i, key := range keys {
		out[i].Member = p.members[key]
		if problem := out[i].Problem; problem != "" {
			out[i].large = fmt.Sprintf("pod %s: %s", key.Name, problem)
		}
	}
	return out
}
