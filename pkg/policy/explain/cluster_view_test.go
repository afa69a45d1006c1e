package explain_test

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/explain"
)

func TestTiersAreShownInWords(t *testing.T) {
	p := shop()
	isolate(p)
	p.PutClusterPolicy(clusterPolicy("guests", policy.Admin, 3, rule(policy.Pass),
		rule(policy.Deny)))
	p.PutClusterPolicy(clusterPolicy("first", policy.Admin, 1, policy.ClusterRule{
		Action: policy.Accept, Peers: []policy.Peer{{Block: &policy.Block{
			CIDR: netip.MustParsePrefix("10.0.0.0/8")}}},
		Ports: []policy.Port{{Proto: policy.TCP, First: 80, Last: 81}}}))
	p.PutClusterPolicy(policy.ClusterPolicy{Name: "floor", Tier: policy.Baseline,
		Rules: [2][]policy.ClusterRule{nil, {rule(policy.Deny)}}})

	v, err := explain.Pod(p, web, p.Plan())
	errtest.Must(t, err)
	const clients = "pods with app=client in all namespaces"
	want := policy.SideView{Isolated: true, By: []string{"shop/deny"}, Admin: []policy.LineView{
		{Policy: "first", Action: "Accept", Peers: "10.0.0.0/8", Ports: "tcp 80-81", Members: -1},
		{Policy: "guests", Action: "Pass", Peers: clients, Ports: "all", Members: 2},
		{Policy: "guests", Action: "Deny", Peers: clients, Ports: "all", Members: 2}}}
	if d := cmp.Diff(want, v.Ingress); d != "" {
		t.Errorf("ingress:\n%s", d)
	}
	want = policy.SideView{Baseline: []policy.LineView{
		{Policy: "floor", Action: "Deny", Peers: clients, Ports: "all", Members: 2}}}
	if d := cmp.Diff(want, v.Egress); d != "" {
		t.Errorf("egress:\n%s", d)
	}
	if d := cmp.Diff([]string{"first", "guests", "floor"}, v.ClusterPolicies); d != "" {
		t.Error(d)
	}

	list, _ := explain.List(p, p.Plan())
	var rows []string
	for _, l := range list {
		rows = append(rows, l.Policy+" "+l.Tier+" "+strings.Join(l.Directions, ","))
		if !l.Enforced || !reflect.DeepEqual(l.Pods, []string{"shop/web"}) {
			t.Errorf("policy %+v, want enforced for shop/web only", l)
		}
	}
	if d := cmp.Diff([]string{"first Admin ingress", "floor Baseline egress",
		"guests Admin ingress", "shop/deny NetworkPolicy ingress"}, rows); d != "" {
		t.Error(d)
	}

	// A policy that denies more than its text does is reported.
	p.PutClusterPolicy(policy.ClusterPolicy{Name: "floor", Invalid: "why", Denies: [2]bool{true}})
	if v, err = explain.Pod(p, web, p.Plan()); err != nil || len(v.Problems) != 1 ||
		!strings.Contains(v.Problems[0], "ClusterNetworkPolicy floor: why") {
		t.Errorf("view of the pod: %+v, %v, want one problem", v, err)
	}
	if list, _ := explain.List(p, p.Plan()); list[1].Enforced || list[1].Problem != "why" {
		t.Errorf("policy %+v, want a problem", list[1])
	}
}

func TestPeerOfATierThatIsNotInForceIsShownSo(t *testing.T) {
	p := shop()
	p.PutClusterPolicy(clusterPolicy("a", policy.Admin, 0, rule(policy.Deny)))
	before := p.Plan()
	other := policy.Pod{Name: policy.Name{Namespace: "shop", Name: "late"}, Node: "there", UID: "9",
		Addrs: []netip.Addr{netip.MustParseAddr("198.18.2.99")}}
	p.PutPod(other) // not a client, and no longer an unknown peer
	if list, _ := explain.List(p, before); list[0].Enforced {
		t.Errorf("without a known peer: %+v", list[0])
	}
	if list, _ := explain.List(p, p.Plan()); !list[0].Enforced {
		t.Errorf("in force: %+v", list[0])
	}
}

func TestDeciderIsNamed(t *testing.T) {
	p := shop()
	p.SetRanges([]netip.Prefix{netip.MustParsePrefix("198.18.0.0/24")})
	p.PutClusterPolicy(clusterPolicy("a", policy.Admin, 0, rule(policy.Deny)))
	p.PutClusterPolicy(clusterPolicy("b", policy.Baseline, 0, rule(policy.Accept)))
	ask := func(f policy.Flow, name string, action policy.Action) {
		t.Helper()
		if n, a := explain.Decider(p, p.Plan(), policy.Ingress, f); n != name || a != action {
			t.Errorf("%q %v, want %q %v", n, a, name, action)
		}
	}

	ask(from(2, 80), "a", policy.Deny)
	ask(from(3, 80), "a", policy.Deny) // an unknown peer
	for i, want := range map[int]string{2: "", 3: "; the pod that has the address is unknown"} {
		want = "Deny pods with app=client in all namespaces, ports all" + want
		if got := explain.DecidingRule(p, p.Plan(), policy.Ingress, from(i, 80)); got != want {
			t.Errorf("deciding rule %q, want %q", got, want)
		}
	}

	p.PutClusterPolicy(clusterPolicy("a", policy.Admin, 0, rule(policy.Pass)))
	ask(from(2, 80), "b", policy.Accept)
	isolate(p)
	ask(from(2, 80), "", policy.Pass)
	if got := explain.DecidingRule(p, p.Plan(), policy.Ingress, from(2, 80)); got != "" {
		t.Errorf("no line decides, but DecidingRule returned %q", got)
	}
	p.DeleteClusterPolicy("a")
	ask(from(2, 80), "", policy.Pass)
	if n, _ := explain.Decider(p, p.Plan(), policy.Egress, from(2, 80)); n != "" {
		t.Errorf("egress of a pod elsewhere: %q", n)
	}
}
