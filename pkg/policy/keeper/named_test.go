package keeper

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/pod"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/explain"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables"
)

// swollen returns a Keeper that has put many policies with the longest names in force, all of which
// select the only pod. It uses no kernel.
func swollen(t *testing.T, many int, invalid string) *Keeper {
	t.Helper()
	k := New(PolicyConfig{Node: "here", Paths: pod.DefaultPaths(),
		Log: slog.New(slog.DiscardHandler)})
	p := k.planner
	p.PutNamespace(policy.Namespace{Name: "shop"})
	web := policy.Pod{Name: policy.Name{Namespace: "shop", Name: "web"}, UID: "u", Node: "here"}
	p.PutPod(web)
	p.SetAttached(web.Key(), addrsOf(1))
	for i := range many {
		p.PutPolicy(policy.Policy{Isolates: [2]bool{true}, Invalid: invalid,
			Name: policy.Name{Namespace: "shop", Name: fmt.Sprintf("%0253d", i)}})
	}
	plan := p.Plan()
	k.publish(func(f *inForce) { f.plan = plan })
	return k
}

// A tenant with thousands of policies must not fill the memory of veild by denied packets.
func TestDeniedPacketNamesFewPolicies(t *testing.T) {
	const many = 10000
	k := swollen(t, many, "")
	d := nftables.Dropped{Reason: "policy_ingress", Flow: policy.Flow{Proto: policy.TCP, Port: 80,
		Src: netip.MustParseAddr("198.18.2.9"), Dst: addrsOf(1)[0]}}
	by := k.explain(d)
	if len(by.Policies) != explain.MaxNamed || by.More != many-explain.MaxNamed ||
		by.Rule == "" || by.Pod != "shop/web" {
		t.Errorf("denied by %d policies and %d more, rule %q, pod %q", len(by.Policies), by.More,
			by.Rule, by.Pod)
	}
	if again := k.explain(d); &again.Policies[0] != &by.Policies[0] {
		t.Error("each sample has its own copy of the names")
	}
	k.denied.Add(d, by, policy.Name{})
	if counts, leftOut := k.denied.Retain(map[string]bool{by.Policies[0]: true}); len(counts) != 1 ||
		leftOut != 1 {
		t.Errorf("counts %v, %d left out", counts, leftOut)
	}

	for i := range many - 1 {
		k.planner.DeletePolicy(policy.Name{Namespace: "shop", Name: fmt.Sprintf("%0253d", i)})
	}
	plan := k.planner.Plan()
	k.publish(func(f *inForce) { f.plan = plan })
	if by := k.explain(d); len(by.Policies) != 1 || by.More != 0 {
		t.Errorf("after a change: denied by %d policies and %d more", len(by.Policies), by.More)
	}
}

// Each step compares the problems with those of the last step, and each status has them.
func TestProblemsOfPoliciesAreBounded(t *testing.T) {
	k := swollen(t, 1000, "operator x is not known")
	k.show(k.shown.Load().plan, 0, nil)
	problems := k.Problems()
	last := fmt.Sprintf("policies of namespace shop: %d more problems", 1000-maxProblems)
	if len(problems) != maxProblems+1 || !strings.HasPrefix(problems[maxProblems], last) {
		t.Errorf("%d problems, last %.80q", len(problems), problems[len(problems)-1])
	}
	if n := k.Status().NotEnforced["NetworkPolicy"]; n != 1000 {
		t.Errorf("%d policies count as not enforced", n)
	}
}
