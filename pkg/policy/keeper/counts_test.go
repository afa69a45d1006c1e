package keeper

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables"
)

// A connection counts for each rule that allows it, at both of its ends.
func TestRulesCountWhatTheyAllowAndDeny(t *testing.T) {
	n := newNode(t)
	n.put("client", map[string]string{"app": "client"})
	n.put("server", map[string]string{"app": "server"})
	n.attach("client", 1)
	n.attach("server", 2)
	client := policy.Selector{{Key: "app", Values: []string{"client"}}}
	server := policy.Selector{{Key: "app", Values: []string{"server"}}}
	n.PutPolicy(policy.Policy{Name: policy.Name{Namespace: "shop", Name: "web"}, Subjects: server,
		Isolates: [2]bool{true, false}, Rules: [2][]policy.Rule{{
			{Peers: []policy.Peer{{Pods: &client}}},
			{Ports: []policy.Port{{Proto: policy.TCP, First: 1001, Last: 1001}}}}}})
	all := policy.Selector{}
	n.PutClusterPolicy(policy.ClusterPolicy{Name: "out", Pods: client,
		Rules: [2][]policy.ClusterRule{nil, {{Action: policy.Accept,
			Peers: []policy.Peer{{Namespaces: &all}}}}}})
	n.listed()
	n.connect("client", "server", addrsOf(2)[0], 1001, 1002)

	for range 3 {
		d := nftables.Dropped{Reason: "policy_ingress", Flow: policy.Flow{
			Src: prefixes["there"][0].Addr().Next(), Dst: addrsOf(2)[0], Proto: policy.TCP, Port: 9}}
		n.denied.Add(d, n.explain(d), policy.Name{})
	}
	var l List
	n.must(func() error { l = n.ListCounted(); return nil })
	got := map[string][]string{}
	for _, v := range l.Policies {
		for _, r := range v.Rules {
			got[v.Policy] = append(got[v.Policy], fmt.Sprintf("%s %s: %d, %d", r.Direction, r.Rule,
				r.Allowed, r.Denied))
		}
	}

	want := map[string][]string{
		"out": {"egress Accept all pods in all namespaces, ports all: 2, 0"},
		"shop/web": {"ingress anywhere, ports tcp 1001: 1, 0",
			"ingress no rule of these allows it: 0, 3",
			"ingress pods with app=client in namespace shop, ports all: 2, 0"}}
	if diff := cmp.Diff(want, got); diff != "" || len(l.Problems) > 0 {
		t.Errorf("counts of rules (-want +got): %s, problems %q", diff, l.Problems)
	}
}
