package planner_test

import (
	"fmt"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
	"github.com/kubeveil/kubeveil/pkg/policy/policytest"
)

// 16,000 selectors of one namespace become few sets, which pods of other namespaces do not change.
func TestManySelectorsAreFewSetsOfTheirNamespace(t *testing.T) {
	p := planner.New("here")
	local := policy.Pod{Name: policy.Name{Namespace: "a", Name: "local"}, UID: "1", Node: "here",
		Labels: map[string]string{"app": "app"}}
	p.PutPod(local)
	for _, np := range policytest.Selectors("a", "app", 64, 16000) {
		p.PutPolicy(np)
	}
	before := p.Plan()
	m := before.Members[policy.Key{Name: local.Name, UID: "1"}]
	if m.Problem != "" || len(before.Problems) > 0 {
		t.Fatalf("denied: %q %v", m.Problem, before.Problems)
	}
	if n := before.Sets.Len(); n > 64 {
		t.Errorf("%d sets", n)
	}

	for name, namespace := range map[string]string{"stranger": "b", "peer": "a"} {
		p.PutPod(policy.Pod{Name: policy.Name{Namespace: namespace, Name: name}, UID: "2",
			Node: "there", Labels: map[string]string{"tier": "x"}, Addrs: policytest.PodAddrs(len(name))})
		after := p.Plan()
		changed, ok := after.Sets.ChangedSince(before.Sets)
		if want := map[string]int{"a": 64, "b": 0}[namespace]; len(changed) != want || !ok {
			t.Errorf("pod of namespace %s: %d sets changed, %t, want %d", namespace, len(changed), ok,
				want)
		}
		before = after
	}
}

// A pod is checked only against sets that require one of its labels, or no label.
func TestPodChangesSetsThatRequireItsLabels(t *testing.T) {
	p := planner.New("here")
	p.PutPod(policy.Pod{Name: policy.Name{Namespace: "a", Name: "local"}, UID: "1", Node: "here"})
	var rules []policy.Rule
	for i := range 1000 {
		rules = append(rules, policy.Rule{
			Peers: []policy.Peer{{Pods: labelled("app", fmt.Sprint(i))}},
			Ports: []policy.Port{{Proto: policy.TCP, First: uint16(i + 1), Last: uint16(i + 1)}}})
	}
	p.PutPolicy(policy.Policy{Name: policy.Name{Namespace: "a", Name: "many"},
		Isolates: [2]bool{true}, Rules: [2][]policy.Rule{rules}})
	p.Plan()
	allocations := testing.AllocsPerRun(20, func() {
		for i := range 2 {
			p.PutPod(policy.Pod{Name: policy.Name{Namespace: "a", Name: "peer"}, UID: "2",
				Node: "there", Labels: map[string]string{"app": fmt.Sprint(i)}, Addrs: policytest.PodAddrs(2)})
			p.Plan()
		}
	})
	if allocations > 200 {
		t.Errorf("%v allocations for two changes of a pod beside 1,000 sets", allocations)
	}
}
