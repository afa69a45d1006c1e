package policy_test

import (
	"fmt"
	"testing"

	"github.com/kubeveil/kubeveil/internal/policytest"
	"github.com/kubeveil/kubeveil/pkg/policy"
)

// crowdOf returns a planner with pods of namespace a of which each has the largest direction, and a
// neighbour in namespace b with a small policy.
func crowdOf(pods int) (p *policy.Planner, neighbour policy.Key) {
	p = policy.NewPlanner("here")
	for i := range pods {
		app := fmt.Sprint("app-", i)
		p.PutPod(policy.Pod{Name: policy.Name{Namespace: "a", Name: app}, UID: app, Node: "here",
			Labels: map[string]string{"app": app}})
		for _, np := range policytest.OwnPorts("a", app, policy.MaxChainLines, true) {
			p.PutPolicy(np)
		}
	}
	neighbour = policy.Key{Name: policy.Name{Namespace: "b", Name: "pod"}, UID: "1"}
	p.PutPod(policy.Pod{Name: neighbour.Name, UID: "1", Node: "here"})
	for _, np := range policytest.OwnPorts("b", "pod", 10, false) {
		np.Subjects = nil
		p.PutPolicy(np)
	}
	return p, neighbour
}

// denied counts the policies of namespace a that deny; those of b must not.
func denied(t *testing.T, plan *policy.Plan) (n int) {
	t.Helper()
	for name, problem := range plan.Problems {
		if name.Namespace != "a" {
			t.Errorf("%s: %s", name, problem)
		}
		n++
	}
	return n
}

// Ten times the largest direction is denied as far as it exceeds the namespace's budget, with a
// problem for each policy. A neighbour is judged as before. A pod that goes changes nothing of
// that; an edit of a policy does.
func TestNamespaceBeyondItsBudgetPaysItself(t *testing.T) {
	const most = policy.MaxNamespaceLines / policy.MaxLines
	p, neighbour := crowdOf(10)
	plan := p.Plan()
	if n := denied(t, plan); n != 40-most {
		t.Errorf("%d of 40 policies deny, want %d", n, 40-most)
	}
	if m := plan.Members[neighbour]; m.Problem != "" || len(plan.Chains) == 0 {
		t.Errorf("the neighbour: %+v", m)
	}
	again, _ := crowdOf(10)
	for name := range again.Plan().Problems {
		if plan.Problems[name] == "" {
			t.Errorf("%s denies in the second planner only", name)
		}
	}

	first := policy.Pod{Name: policy.Name{Namespace: "a", Name: "app-0"}, UID: "app-0", Node: "here",
		Labels: map[string]string{"app": "app-0"}}
	for i := range 10 {
		p.DeletePod(policy.Name{Namespace: "a", Name: fmt.Sprint("app-", i)})
		p.Plan()
	}
	p.PutPod(first)
	if n := denied(t, p.Plan()); n != 4 {
		t.Errorf("%d policies deny when pods went, want the 4 of app-0 as before", n)
	}
	p.DeletePolicy(policy.Name{Namespace: "a", Name: "app-0-ports-0"})
	if n := denied(t, p.Plan()); n != 0 {
		t.Errorf("%d policies deny after an edit", n)
	}
}

func TestLargestDirectionsWithinTheBudgetAreInForce(t *testing.T) {
	p, _ := crowdOf(policy.MaxNamespaceLines / policy.MaxChainLines)
	if n := denied(t, p.Plan()); n != 0 {
		t.Errorf("%d policies deny", n)
	}
}
