package planner_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/compile"
)

func TestDenialsAreOfPoliciesThatSelectPodsOfThisNode(t *testing.T) {
	p := shop()
	invalid := policy.Policy{Name: policy.Name{Namespace: "shop", Name: "web"},
		Isolates: [2]bool{true}, Invalid: "why", Object: policy.Object{UID: "u1", Generation: 1}}
	far := invalid
	far.Name.Name, far.Subjects = "far", *labelled("app", "client")
	fine := invalid
	fine.Name.Name, fine.Invalid = "fine", ""
	cluster := policy.ClusterPolicy{Name: "guests", Invalid: "spec", Denies: [2]bool{true},
		Object: policy.Object{UID: "u2", Generation: 3}}
	p.PutPolicy(invalid)
	p.PutPolicy(far)
	p.PutPolicy(fine)
	p.PutClusterPolicy(cluster)

	want := []policy.Denial{
		{Name: policy.Name{Name: "guests"}, Object: cluster.Object, Problem: "spec"},
		{Name: invalid.Name, Object: invalid.Object,
			Problem: "it denies everything that it isolates: why"}}
	before := p.Plan()
	if got := before.Denials; !slices.Equal(got, want) {
		t.Errorf("denials %+v, want %+v", got, want)
	}

	// Another revision with the same content makes no chain again.
	invalid.Object.Generation, cluster.Object.Generation = 2, 4
	want[1].Generation, want[0].Generation = 2, 4
	p.PutPolicy(invalid)
	p.PutClusterPolicy(cluster)
	after := p.Plan()
	if !slices.Equal(after.Denials, want) || before.Members[webKey] != after.Members[webKey] {
		t.Errorf("%+v, want %+v and the same member", after.Denials, want)
	}

	p.DeletePod(web)
	if got := p.Plan().Denials; len(got) > 0 {
		t.Errorf("without pods of this node: %+v", got)
	}
}

// No policy exceeds a bound alone, but all policies of the pod together do.
func TestBoundOfAPodIsADenialOfEachOfItsPolicies(t *testing.T) {
	p := shop()
	for i := range compile.MaxChainLines/compile.MaxLines + 1 {
		var rule policy.Rule
		for j := range compile.MaxLines - i {
			n := uint16(1 + 2*j)
			rule.Ports = append(rule.Ports, policy.Port{Proto: policy.TCP, First: n, Last: n})
		}
		p.PutPolicy(policy.Policy{Name: policy.Name{Namespace: "shop", Name: fmt.Sprint(i)},
			Isolates: [2]bool{true}, Rules: [2][]policy.Rule{{rule}}})
	}
	got := p.Plan().Denials
	if len(got) != compile.MaxChainLines/compile.MaxLines+1 ||
		!strings.HasPrefix(got[0].Problem, "pod shop/web: ingress: everything is denied, because") {
		t.Errorf("denials %+v, want one per policy", got)
	}
}
