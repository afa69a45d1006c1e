package policyfeed

import (
	"fmt"

	"github.com/kubeveil/kubeveil/pkg/kube/feed"
	"github.com/kubeveil/kubeveil/pkg/policy"
)

// Bounds on the objects of one namespace, in elements of package wire. Beyond a bound, the largest
// objects of the namespace are dropped.
const (
	// MaxPolicies bounds the rules and podSelectors of NetworkPolicies. Each policy counts at least
	// LeastPolicy elements, which is what its name and its UID cost.
	MaxPolicies = 1 << 19
	LeastPolicy = 32
	// MaxCount bounds the number of NetworkPolicies. Beyond it, one policy that denies everything
	// replaces them all.
	MaxCount = 4096
	// MaxPods bounds the labels and named ports of Pods. FreePod of each Pod do not count.
	MaxPods = 1 << 16
	FreePod = 32
)

// elementsOf returns the elements of a pod that count for the bound of its namespace.
func elementsOf(p *policy.Pod) int {
	n := len(p.Ports) - FreePod
	for key, value := range p.Labels {
		n += 1 + (len(key)+len(value))/64
	}
	return max(n, 0)
}

// boundPods sets the bound on labels and named ports of Pods. A dropped pod is treated like a pod
// with too many labels.
func boundPods(f *feed.Feed[policy.Pod]) {
	problem := fmt.Sprintf("the pods of its namespace have more than %d labels and named ports, "+
		"not counting %d of each pod, so the labels and ports of its largest pods are ignored. "+
		"Policies that may select such a pod deny its packets, and no selector of a peer selects "+
		"it", MaxPods, FreePod)
	f.ShrinkLargest(MaxPods, problem,
		func(p policy.Pod) policy.Pod {
			p.Labels, p.Ports, p.Excess = nil, nil, true
			return p
		}, func(p policy.Pod) bool { return p.Excess })
}

// largePolicy is the reason why a dropped policy denies traffic.
var largePolicy = fmt.Sprintf("the policies of its namespace have more than %d rules, peers, "+
	"ports, ranges and label values, so the rules of its largest policies are ignored", MaxPolicies)

// boundPolicies sets the bounds on NetworkPolicies. A dropped policy denies all traffic in the
// directions that it isolates. It selects all pods of its namespace if its podSelector is large.
func boundPolicies(f *feed.Feed[policy.Policy], sink policy.Sink) {
	f.ShrinkLargest(MaxPolicies, largePolicy+"; it denies everything",
		func(p policy.Policy) policy.Policy {
			p.Rules, p.Invalid = [2][]policy.Rule{}, largePolicy
			if elementsOfSelector(p.Subjects) > LeastPolicy {
				p.Subjects = nil
			}
			return p
		}, func(p policy.Policy) bool { return p.Invalid == largePolicy })
	f.LimitCount(MaxCount, manyPolicies, func(namespace string, on bool) {
		p := denyNamespace(namespace)
		if on {
			sink.PutPolicy(p)
		} else {
			sink.DeletePolicy(p.Name)
		}
	})
}

// elementsOfSelector returns the requirements and values of a selector, with their text.
func elementsOfSelector(s policy.Selector) (n int) {
	for _, r := range s {
		n += 1 + len(r.Key)/64
		for _, v := range r.Values {
			n += 1 + len(v)/64
		}
	}
	return n
}

// manyPolicies is the reason why all pods of a namespace are isolated.
var manyPolicies = fmt.Sprintf("the namespace has more than %d NetworkPolicies, so all of its pods "+
	"are denied everything: delete some of them", MaxCount)

// denyNamespace returns the policy that replaces all NetworkPolicies of a namespace.
func denyNamespace(namespace string) policy.Policy {
	return policy.Policy{Name: policy.Name{Namespace: namespace, Name: policy.AllOfNamespace},
		Isolates: [2]bool{true, true}, Invalid: manyPolicies}
}
