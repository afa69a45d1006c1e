package planner

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// Revision returns a hash of the policies that were put: of their names, UIDs and generations. It
// depends on nothing else, so all nodes with the same policies return the same hash. It takes time
// in proportion to the number of policies.
func (p *Planner) Revision() string {
	var lines []string
	add := func(name string, o policy.Object) {
		lines = append(lines, fmt.Sprintf("%q %q %d", name, o.UID, o.Generation))
	}
	for ref, o := range p.revisions() {
		add(refWords(ref), o)
	}

	slices.Sort(lines)
	sum := sha256.Sum256([]byte(strings.Join(lines, "\n")))
	return hex.EncodeToString(sum[:6])
}

// Count returns the number of policies.
func (p *Planner) Count() int {
	n := len(p.cluster)
	for _, of := range p.policies {
		n += len(of)
	}
	return n
}

// revisions returns the revisions of the policies that were put.
func (p *Planner) revisions() policy.Revisions {
	all := policy.Revisions{}
	for namespace, of := range p.policies {
		for name, c := range of {
			all[policy.Ref{Kind: policy.KindNetworkPolicy, Namespace: namespace,
				Name: name}] = c.Policy.Object
		}
	}
	for name, c := range p.cluster {
		all[policy.Ref{Kind: policy.KindClusterNetworkPolicy, Name: name}] = c.Policy.Object
	}
	return all
}

// refWords returns how sentences name a policy.
func refWords(r policy.Ref) string {
	if r.Kind == policy.KindClusterNetworkPolicy {
		return "ClusterNetworkPolicy " + r.Name
	}
	return policy.Name{Namespace: r.Namespace, Name: r.Name}.String()
}

// Compare returns how the policies that were put differ from the revisions of all policies: one
// sentence per policy, sorted. A policy whose content exceeded a bound counts as put. So do all
// policies of a namespace that policy.AllOfNamespace replaces. If namespace is not empty, Compare
// leaves out the NetworkPolicies of other namespaces.
func (p *Planner) Compare(listed policy.Revisions, namespace string) (differ []string) {
	put := p.revisions()
	leftOut := func(r policy.Ref) bool {
		return namespace != "" && r.Namespace != "" && r.Namespace != namespace
	}
	replaced := func(r policy.Ref) bool {
		_, is := put[policy.Ref{Kind: policy.KindNetworkPolicy, Namespace: r.Namespace,
			Name: policy.AllOfNamespace}]
		return is && r.Kind == policy.KindNetworkPolicy
	}
	for ref, object := range listed {
		switch has, known := put[ref]; {
		case leftOut(ref) || replaced(ref):
		case !known:
			differ = append(differ, refWords(ref)+" was not received yet")
		case has != object:
			differ = append(differ, "a change of "+refWords(ref)+" was not received yet")
		}
	}

	for ref := range put {
		if _, is := listed[ref]; !is && !leftOut(ref) && !replaced(ref) {
			differ = append(differ, "the deletion of "+refWords(ref)+" was not received yet")
		}
	}
	slices.Sort(differ)
	return differ
}
