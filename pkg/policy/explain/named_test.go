package explain_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/explain"
	"github.com/kubeveil/kubeveil/pkg/policy/policytest"
)

// A policy with an empty spec costs a tenant nothing, so a pod may have any number of them.
func TestManyPoliciesOfAPodAreNotAllNamed(t *testing.T) {
	const many = 10000
	p := shop()
	for i := range many {
		p.PutPolicy(policy.Policy{Isolates: [2]bool{true},
			Name: policy.Name{Namespace: "shop", Name: fmt.Sprintf("deny-%05d", i)}})
	}
	p.PutPolicy(policy.Policy{Isolates: [2]bool{true}, Rules: [2][]policy.Rule{{{}}},
		Name: policy.Name{Namespace: "shop", Name: "open"}})
	plan := p.Plan()

	own := policytest.PodAddrs(1)[0]
	names := explain.Isolating(p, plan, policy.Ingress, own)
	if len(names.Some) != explain.MaxNamed || names.More != many+1-explain.MaxNamed ||
		names.Some[1] != "shop/deny-00001" {
		t.Errorf("isolating: %q and %d more", names.Some, names.More)
	}
	if none := explain.Isolating(p, plan, policy.Egress, own); len(none.Some)+none.More > 0 {
		t.Errorf("isolating in the other direction: %+v", none)
	}
	isolating, allowing := explain.Flow(p, plan, policy.Ingress, from(2, 80))
	if isolating.More != names.More || len(allowing.Some) != 1 || allowing.Some[0] != "shop/open" {
		t.Errorf("explained by %d more, allowed by %+v", isolating.More, allowing)
	}

	views, leftOut := explain.List(p, plan)
	if len(views) > 1<<10 || len(views)+leftOut != many+1 {
		t.Errorf("%d policies are listed and %d left out", len(views), leftOut)
	}
}

// The pods of a namespace multiply with its policies. Other namespaces keep their pods in the list.
func TestListedPodsAreBounded(t *testing.T) {
	const pods, policies = 100, 300
	p := shop()
	p.PutNamespace(policy.Namespace{Name: "crowd"})
	for i := range pods {
		pod := policy.Pod{Name: policy.Name{Namespace: "crowd", Name: fmt.Sprint("pod-", i)},
			UID: fmt.Sprint("crowd-", i), Node: "here"}
		p.PutPod(pod)
		p.SetAttached(pod.Key(), policytest.PodAddrs(10+i))
	}
	for i := range policies {
		p.PutPolicy(policy.Policy{Isolates: [2]bool{true},
			Name: policy.Name{Namespace: "crowd", Name: fmt.Sprint("deny-", i)}})
	}
	isolate(p)

	named, more := 0, 0
	views, leftOut := explain.List(p, p.Plan())
	for _, v := range views {
		if v.Policy == "shop/deny" {
			if len(v.Pods) != 1 || v.MorePods != 0 {
				t.Errorf("the policy of another namespace: %+v", v)
			}
			continue
		}
		named, more = named+len(v.Pods), more+v.MorePods
	}
	if leftOut != 0 || named > 1<<14 || named+more != pods*policies {
		t.Errorf("%d pods are named and %d counted, want %d; %d policies are left out", named, more,
			pods*policies, leftOut)
	}
}

// A rule may have a thousand values. Its words are a summary.
func TestWordsOfARuleAreBounded(t *testing.T) {
	var values []string
	for i := range 1000 {
		values = append(values, fmt.Sprintf("%063d", i))
	}
	p := shop()
	clients := policy.Selector{{Key: "app", Op: policy.NotIn, Values: values}}
	p.PutPolicy(policy.Policy{Isolates: [2]bool{true},
		Name:  policy.Name{Namespace: "shop", Name: "long"},
		Rules: [2][]policy.Rule{{{Peers: []policy.Peer{{Pods: &clients}}}}}})
	plan := p.Plan()

	rules := explain.Allowing(p, plan, policy.Ingress, from(2, 80))
	if len(rules) != 1 || len(rules[0].Rule) > 600 ||
		!strings.Contains(rules[0].Rule, "app not in (") {
		t.Errorf("rules that allow: %+v", rules)
	}
	view, err := explain.Pod(p, web, plan)
	if err != nil || len(view.Ingress.Lines) != 1 || len(view.Ingress.Lines[0].Peers) > 1024 ||
		!strings.Contains(view.Ingress.Lines[0].Peers, " more)") {
		t.Errorf("%v, view %+v", err, view)
	}
}
