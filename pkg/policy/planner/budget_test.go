package planner_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/compile"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
	"github.com/kubeveil/kubeveil/pkg/policy/policytest"
)

// crowdOf returns a planner with pods of namespace a that each have the largest direction, and a
// neighbour in namespace b with a small policy.
func crowdOf(pods int) (p *planner.Planner, neighbour policy.Key) {
	p = planner.New("here")
	for i := range pods {
		app := fmt.Sprint("app-", i)
		p.PutPod(policy.Pod{Name: policy.Name{Namespace: "a", Name: app}, UID: app, Node: "here",
			Labels: map[string]string{"app": app}})
		for _, np := range policytest.OwnPorts("a", app, compile.MaxChainLines, true) {
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

// denied counts the policies of namespace a that deny. Policies of b must not deny.
func denied(t *testing.T, plan *policy.Plan) (n int) {
	t.Helper()
	for name, problem := range plan.Problems {
		if name.Namespace != "a" {
			t.Errorf("policy %s must not have a problem: %s", name, problem)
		}
		n++
	}
	return n
}

// Ten pods with the largest direction exceed the namespace's budget. The excess policies deny
// everything, each with a problem. A neighbour is judged as before. A deleted pod does not restore
// policies, but an edit of a policy does.
func TestNamespaceBeyondItsBudgetPaysItself(t *testing.T) {
	const most = planner.MaxNamespaceLines / compile.MaxLines
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
	p, _ := crowdOf(planner.MaxNamespaceLines / compile.MaxChainLines)
	if n := denied(t, p.Plan()); n != 0 {
		t.Errorf("%d policies deny", n)
	}
}

// putPods puts pods of a namespace that are on this node, or elsewhere with addresses.
func putPods(p *planner.Planner, namespace string, first, count int, here bool) {
	for i := first; i < first+count; i++ {
		name := policy.Name{Namespace: namespace, Name: fmt.Sprint("pod-", i)}
		pod := policy.Pod{Name: name, UID: fmt.Sprint(namespace, i), Node: "there",
			Labels: map[string]string{"app": name.Name}, Addrs: []netip.Addr{
				netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}),
				netip.AddrFrom16([16]byte{0xfd, 0x42, 14: byte(i >> 8), 15: byte(i)})}}
		if here {
			pod.Node, pod.Addrs = "here", nil
		}
		p.PutPod(pod)
	}
}

// Namespaces may each be within their budget and together exceed the budget of the node. Then their
// policies are denied in turns, from the largest namespace first. Policies of a small neighbour are
// not denied.
func TestNodeBeyondItsBudgetTakesFromTheLargest(t *testing.T) {
	const perPod, namespaces = compile.MaxChainLines, 5
	p := planner.New("here")
	for n := range namespaces {
		namespace := fmt.Sprint("large-", n)
		putPods(p, namespace, 0, planner.MaxNamespaceLines/perPod, true)
		for i := range planner.MaxNamespaceLines / perPod {
			for _, np := range policytest.OwnPorts(namespace, fmt.Sprint("pod-", i), perPod, true) {
				p.PutPolicy(np)
			}
		}
	}
	putPods(p, "small", 0, 1, true)
	for _, np := range policytest.OwnPorts("small", "pod-0", 10, false) {
		p.PutPolicy(np)
	}

	by := map[string]int{}
	for name := range p.Plan().Problems {
		by[name.Namespace]++
	}
	// One more than the excess over the budget, for the lines of the neighbour.
	total := 0
	for n := range namespaces {
		took := by[fmt.Sprint("large-", n)]
		if total += took; took < 3 || took > 4 {
			t.Errorf("namespace %d: %d policies deny, want 3 or 4", n, took)
		}
	}
	want := (namespaces*planner.MaxNamespaceLines-planner.MaxNodeLines)/compile.MaxLines + 1
	if total != want || by["small"] != 0 {
		t.Errorf("%d policies deny and %d of the neighbour, want %d and 0", total, by["small"], want)
	}
}

// ownPorts returns the policy with a different port per rule, so that no two rules are joined.
func ownPorts(p policy.Policy) policy.Policy {
	for i := range p.Rules[policy.Ingress] {
		port := uint16(1 + i)
		p.Rules[policy.Ingress][i].Ports = []policy.Port{{Proto: policy.TCP, First: port, Last: port}}
	}
	return p
}

// The policies of one namespace need more elements than the node keeps: in the sets of its peers,
// or in their copies in the chains of pods that have policies of their own beside a common one. Its
// policies then deny everything, and policies of another namespace do not.
func TestElementsBeyondTheBudgetAreOfTheNamespaceWithMost(t *testing.T) {
	const selectors = 1100
	for name, tt := range map[string]struct{ peers, pods int }{
		"sets":   {planner.MaxElements / 2 / selectors, 1},
		"copies": {planner.MaxElements / 2 / selectors / 5, 6},
	} {
		t.Run(name, func(t *testing.T) {
			p := planner.New("here")
			putPods(p, "large", 100, tt.peers+10, false)
			putPods(p, "large", 1, tt.pods, true)
			putPods(p, "small", 50, 1, true)
			putPods(p, "small", 51, 1, false)
			p.PutPolicy(policytest.Selectors("small", "pod-50", 1, 1)[0])
			for i := range tt.pods {
				app := fmt.Sprint("pod-", 1+i)
				own := policytest.Selectors("large", app, 1, 1+i)[0]
				own.Name.Name = "own-" + app
				p.PutPolicy(own)
			}
			if plan := p.Plan(); len(plan.Problems) != 0 {
				t.Fatalf("problems %v", plan.Problems)
			}

			common := ownPorts(policytest.Selectors("large", "", 1, selectors)[0])
			common.Subjects = nil
			p.PutPolicy(common)
			plan := p.Plan()
			if plan.Problems[common.Name] == "" || len(plan.Problems) != 1 {
				t.Errorf("problems %v, want one of %s", plan.Problems, common.Name)
			}
			if plan.Elements > planner.MaxElements {
				t.Errorf("%d elements", plan.Elements)
			}
		})
	}
}

// Many small policies of one namespace together exceed the budget. They are denied in few turns,
// because each turn makes all chains of their pods again.
func TestManySmallPoliciesBeyondTheBudgetOfElements(t *testing.T) {
	const selectors, pods = 1100, 30
	p := planner.New("here")
	putPods(p, "large", 100, 100, false)
	putPods(p, "large", 1, pods, true)
	for i := range pods {
		p.PutPolicy(policytest.Selectors("large", fmt.Sprint("pod-", 1+i), 1, 1+i)[0])
	}
	all := ownPorts(policytest.Selectors("large", "", 1, selectors)[0])
	for i, rule := range all.Rules[policy.Ingress] {
		p.PutPolicy(policy.Policy{Name: policy.Name{Namespace: "large", Name: fmt.Sprint("small-", i)},
			Isolates: [2]bool{true}, Rules: [2][]policy.Rule{{rule}}})
	}
	putPods(p, "other", 90, 1, true)
	p.PutPolicy(policytest.OwnPorts("other", "pod-90", 10, false)[0])

	plan := p.Plan()
	if plan.Elements > planner.MaxElements || len(plan.Problems) == 0 {
		t.Errorf("%d elements, %d policies deny", plan.Elements, len(plan.Problems))
	}
	for name := range plan.Problems {
		if name.Namespace != "large" {
			t.Errorf("%s denies", name)
		}
	}
}

// crossing returns a policy whose blocks and ports cross: half of the lines have wide address
// ranges, half have wide port ranges.
func crossing(namespace string) policy.Policy {
	const across = 120
	p := policy.Policy{Name: policy.Name{Namespace: namespace, Name: "crossing"},
		Isolates: [2]bool{policy.Egress: true}}
	add := func(cidr netip.Prefix, first, last int) {
		p.Rules[policy.Egress] = append(p.Rules[policy.Egress], policy.Rule{
			Peers: []policy.Peer{{Block: &policy.Block{CIDR: cidr.Masked()}}},
			Ports: []policy.Port{{Proto: policy.UDP, First: uint16(first), Last: uint16(last)}}})
	}
	for i := range across {
		a := netip.AddrFrom4([4]byte{100, 64, 0, byte(i)})
		add(netip.PrefixFrom(a, 8+i%17), 2+2*i, 2+2*i)
		add(netip.PrefixFrom(a, 32), 1, 1000+i)
	}
	return p
}

// Blocks that cross each other make many boxes, in the chain of each pod that has further policies.
func TestBoxesOfBlocksAreInTheBudget(t *testing.T) {
	p := planner.New("here")
	const pods = 80
	putPods(p, "large", 1, pods, true)
	for i := range pods {
		p.PutPolicy(policytest.OwnPorts("large", fmt.Sprint("pod-", 1+i), 1+i, false)[0])
	}
	putPods(p, "small", 100, 1, true)
	p.PutPolicy(policytest.OwnPorts("small", "pod-100", 10, false)[0])
	large := crossing("large")
	p.PutPolicy(large)

	plan := p.Plan()
	if plan.Problems[large.Name] == "" || len(plan.Problems) != 1 {
		t.Errorf("problems %v, %d elements, want one of %s", plan.Problems, plan.Elements, large.Name)
	}
	if plan.Elements > planner.MaxElements {
		t.Errorf("%d elements", plan.Elements)
	}
}
