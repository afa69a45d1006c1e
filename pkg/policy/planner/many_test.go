package planner_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/compile"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
	"github.com/kubeveil/kubeveil/pkg/policy/policytest"
)

// allocated returns the number of bytes that f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// The work for small policies that all select the same pods grows with their number, and not with
// its square.
func TestManyEmptyPoliciesOfANamespaceCostLittle(t *testing.T) {
	const policies, pods, most = 4096, 32, 48 << 20
	p := planner.New("here")
	putPods(p, "evil", 1, pods, true)
	empty := func(i int) policy.Policy {
		return policy.Policy{Name: policy.Name{Namespace: "evil", Name: fmt.Sprint("p", i)},
			Isolates: [2]bool{true}}
	}
	for i := range policies {
		p.PutPolicy(empty(i))
	}
	p.Plan()

	edited := empty(7)
	edited.Isolates[policy.Egress] = true
	p.PutPolicy(edited)
	var plan *policy.Plan
	if n := allocated(func() { plan = p.Plan() }); n > most {
		t.Errorf("an edit allocates %d bytes, want at most %d", n, most)
	}
	if plan.Selecting != policies || len(plan.Members) != pods {
		t.Errorf("%d policies select %d pods", plan.Selecting, len(plan.Members))
	}

	// An event of another namespace does not look at these policies.
	putPods(p, "shop", 100, 1, true)
	if n := allocated(func() { p.Plan() }); n > most/48 {
		t.Errorf("an event of another namespace allocates %d bytes, want at most %d", n, most/48)
	}
}

// Policies beyond the budget of their namespace are counted and not compiled: ten times as many as
// the budget has room for do not need twice the memory.
func TestPoliciesBeyondTheBudgetAreOnlyCounted(t *testing.T) {
	const lines, room = 1000, 10
	planned := func(policies int) uint64 {
		p := planner.New("here")
		p.Limit(room*lines, 2*room*lines, 2*room*lines)
		putPods(p, "a", 1, 1, true)
		for i := range policies {
			np := policytest.OwnPorts("a", fmt.Sprint("p", i), lines, true)[0]
			np.Subjects = nil
			p.PutPolicy(np)
		}
		var plan *policy.Plan
		bytes := allocated(func() { plan = p.Plan() })
		if n := denied(t, plan); n != policies-room {
			t.Errorf("%d of %d policies deny", n, policies)
		}
		return bytes
	}
	if within, beyond := planned(room), planned(10*room); beyond > 2*within {
		t.Errorf("a plan allocates %d bytes within the budget, and %d beyond it", within, beyond)
	}
}

// A change of a namespace's policies judges again those that deny because of a budget, in a copy of
// the planner too.
func TestCopyForgivesPoliciesThatDeny(t *testing.T) {
	p, _ := crowdOf(10)
	if denied(t, p.Plan()) == 0 {
		t.Fatal("no policy denies: the test shows nothing")
	}
	q := p.Copy()
	for i := 1; i < 10; i++ {
		for _, np := range policytest.OwnPorts("a", fmt.Sprint("app-", i), compile.MaxChainLines, true) {
			p.DeletePolicy(np.Name)
			q.DeletePolicy(np.Name)
		}
	}
	if a, b := denied(t, p.Plan()), denied(t, q.Plan()); a != 0 || b != 0 {
		t.Errorf("%d policies deny, and %d of a copy, want none", a, b)
	}
}

// Policies whose content was dropped, and namespaces that one policy replaces, count as put. So one
// tenant's objects do not make others wait.
func TestDroppedPoliciesCountAsPut(t *testing.T) {
	p := planner.New("here")
	large := policy.Policy{Name: policy.Name{Namespace: "evil", Name: "large"},
		Invalid: "it was dropped", Object: policy.Object{UID: "1", Generation: 3}}
	p.PutPolicy(large)
	p.PutPolicy(policy.Policy{Name: policy.Name{Namespace: "many", Name: policy.AllOfNamespace}})
	ref := func(namespace, name string) policy.Ref {
		return policy.Ref{Kind: policy.KindNetworkPolicy, Namespace: namespace, Name: name}
	}
	listed := policy.Revisions{ref("evil", "large"): large.Object}
	for i := range 3 {
		listed[ref("many", fmt.Sprint("p", i))] = policy.Object{UID: fmt.Sprint(i), Generation: 1}
	}

	if differ := p.Compare(listed, ""); len(differ) > 0 {
		t.Errorf("differences %q", differ)
	}
	listed[ref("evil", "large")] = policy.Object{UID: "1", Generation: 4}
	if differ := p.Compare(listed, ""); len(differ) != 1 {
		t.Errorf("differences %q, want the change of evil/large", differ)
	}
}
