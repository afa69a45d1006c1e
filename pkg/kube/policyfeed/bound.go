package policyfeed

import (
	"fmt"

	"github.com/kubeveil/kubeveil/pkg/kube/feed"
	"github.com/kubeveil/kubeveil/pkg/policy"
)

// Bounds on the objects of one namespace, in elements of package wire. Beyond a bound, the largest
// objects of the namespace are dropped.
const (
	// MaxPolicies bounds the rules and podSelectors of NetworkPolicies.
	MaxPolicies = 1 << 19
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

// boundPolicies sets the bound on rules of NetworkPolicies. A dropped policy denies all traffic in
// the directions that it isolates.
func boundPolicies(f *feed.Feed[policy.Policy]) {
	f.ShrinkLargest(MaxPolicies, largePolicy+"; it denies everything",
		func(p policy.Policy) policy.Policy {
			p.Rules, p.Invalid = [2][]policy.Rule{}, largePolicy
			return p
		}, func(p policy.Policy) bool { return p.Invalid == largePolicy })
}
