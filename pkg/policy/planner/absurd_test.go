package planner_test

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/policytest"
)

// An absurd policy has the effect of a policy that denies everything, and does not affect other
// pods.
func TestAbsurdPolicyChangesNoOtherVerdict(t *testing.T) {
	all, policies := policytest.Flows(), policytest.Absurd()
	names := slices.Sorted(maps.Keys(policies))
	rapid.Check(t, func(t *rapid.T) {
		w := policytest.DrawWorld(t)
		p := w.NewPlanner()
		for range rapid.IntRange(1, 40).Draw(t, "changes") {
			w.Change(t, p)
		}
		// IPAM assigns an address once.
		for key, has := range w.Attached {
			if has[0] == policytest.PodAddrs(1)[0] || has[0] == policytest.PodAddrs(2)[0] {
				p.SetAttached(key, nil)
			}
		}

		p.PutNamespace(policy.Namespace{Name: policytest.AbsurdNamespace})
		for i, app := range []string{"victim", "bystander"} {
			pod := policy.Pod{Name: policy.Name{Namespace: policytest.AbsurdNamespace, Name: app},
				UID: app, Node: w.Node, Labels: map[string]string{"app": app}}
			p.PutPod(pod)
			p.SetAttached(policy.Key{Name: pod.Name, UID: app}, policytest.PodAddrs(1+i))
		}
		without := p.Plan().Judges()

		absurd := policies[rapid.SampledFrom(names).Draw(t, "absurd")]
		p.PutPolicy(absurd)
		plan := p.Plan()
		if plan.Problems[absurd.Name] == "" {
			t.Fatalf("the absurd policy is not among the problems %v", plan.Problems)
		}
		with := plan.Judges()

		deny, own := absurd, policytest.PodAddrs(1)
		deny.Rules = [2][]policy.Rule{}
		if deny.Name.Name == "subjects" { // which are all pods of the namespace
			deny.Subjects, own = nil, append(own, policytest.PodAddrs(2)...)
		}
		p.PutPolicy(deny)
		denied := p.Plan().Judges()

		for _, f := range all {
			got := with(f)
			if want := denied(f); got != want {
				t.Fatalf("%+v: %s, by a policy that denies everything %s", f, got, want)
			}
			about := f.FromPod && slices.Contains(own, f.Src) ||
				f.ToPod && slices.Contains(own, f.Dst)
			if want := without(f); !about && got != want {
				t.Fatalf("%+v: %s, without the absurd policy %s", f, got, want)
			}
		}
	})
}
