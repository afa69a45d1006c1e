package planner_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/compile"
	"github.com/kubeveil/kubeveil/pkg/policy/explain"
	"github.com/kubeveil/kubeveil/pkg/policy/policytest"
)

var rule, clusterPolicy, isolate = policytest.ClientRule, policytest.IngressPolicy,
	policytest.Isolate

func TestTiersAreAskedInTheirOrder(t *testing.T) {
	for name, tt := range map[string]struct {
		policies []policy.ClusterPolicy
		isolated bool
		want     policy.Verdict
	}{
		"admin accepts before NetworkPolicy": {[]policy.ClusterPolicy{
			clusterPolicy("a", policy.Admin, 0, rule(policy.Accept))}, true, policy.Allow},
		"admin denies": {[]policy.ClusterPolicy{
			clusterPolicy("a", policy.Admin, 0, rule(policy.Deny))}, false, policy.DenyAdmin},
		"admin passes to NetworkPolicy": {[]policy.ClusterPolicy{
			clusterPolicy("a", policy.Admin, 0, rule(policy.Pass), rule(policy.Accept))}, true,
			policy.DenyIngress},
		"admin passes to baseline": {[]policy.ClusterPolicy{
			clusterPolicy("a", policy.Admin, 0, rule(policy.Pass), rule(policy.Accept)),
			clusterPolicy("b", policy.Baseline, 0, rule(policy.Deny))}, false, policy.DenyBaseline},
		"baseline passes to the default": {[]policy.ClusterPolicy{
			clusterPolicy("b", policy.Baseline, 0, rule(policy.Pass), rule(policy.Deny))}, false,
			policy.Allow},
		"NetworkPolicy is final": {[]policy.ClusterPolicy{
			clusterPolicy("b", policy.Baseline, 0, rule(policy.Accept))}, true, policy.DenyIngress},
		"the lower priority is first": {[]policy.ClusterPolicy{
			clusterPolicy("a", policy.Admin, 7, rule(policy.Accept)),
			clusterPolicy("b", policy.Admin, 3, rule(policy.Deny))}, false, policy.DenyAdmin},
		"equal priorities go by name": {[]policy.ClusterPolicy{
			clusterPolicy("b", policy.Admin, 3, rule(policy.Deny)),
			clusterPolicy("a", policy.Admin, 3, rule(policy.Accept))}, false, policy.Allow},
		"egress rules do not affect ingress": {[]policy.ClusterPolicy{{Name: "a",
			Rules: [2][]policy.ClusterRule{nil, {rule(policy.Deny)}}}}, false, policy.Allow},
	} {
		t.Run(name, func(t *testing.T) {
			p := shop()
			if tt.isolated {
				isolate(p)
			}
			for _, c := range tt.policies {
				p.PutClusterPolicy(c)
			}
			expect(t, p, from(2, 8080), tt.want)
			for _, c := range tt.policies {
				p.DeleteClusterPolicy(c.Name)
			}
			want := policy.Allow
			if tt.isolated {
				want = policy.DenyIngress
			}
			expect(t, p, from(2, 8080), want)
		})
	}
}

func TestUnknownPeerIsDroppedWhereADenyCouldApply(t *testing.T) {
	p := shop()
	p.SetRanges([]netip.Prefix{netip.MustParsePrefix("198.18.0.0/24")})
	deny := rule(policy.Deny)
	deny.Ports = []policy.Port{{Proto: policy.TCP, First: 8080, Last: 8080}}
	p.PutClusterPolicy(clusterPolicy("a", policy.Admin, 0, deny))
	expect(t, p, from(2, 8080), policy.DenyAdmin)
	expect(t, p, from(3, 8080), policy.DenyUnknownPeer)
	expect(t, p, from(3, 80), policy.Allow)
	expect(t, p, from(0, 8080), policy.Allow) // the node's own address

	outside := from(3, 8080)
	outside.Src = policytest.Outside[0]
	expect(t, p, outside, policy.Allow)

	name := policy.Name{Namespace: "shop", Name: "other"}
	p.PutPod(policy.Pod{Name: name, UID: "3", Node: "there", Addrs: policytest.PodAddrs(3)})
	expect(t, p, from(3, 8080), policy.Allow)
	name.Namespace = "nobody knows"
	p.PutPod(policy.Pod{Name: name, UID: "4", Node: "there", Addrs: policytest.PodAddrs(4)})
	expect(t, p, from(4, 8080), policy.DenyUnknownPeer)
}

func TestPodOfAnUnknownNamespaceIsMuteUnderClusterPolicies(t *testing.T) {
	p := shop()
	p.PutClusterPolicy(policy.ClusterPolicy{Name: "a",
		Namespaces: *labelled("team", "a"), Rules: [2][]policy.ClusterRule{{rule(policy.Deny)}}})
	expect(t, p, from(2, 8080), policy.Allow)
	p.PutNamespace(policy.Namespace{Name: "shop", Labels: map[string]string{"team": "a"}})
	expect(t, p, from(2, 8080), policy.DenyAdmin)
	p.DeleteNamespace("shop")
	expect(t, p, from(2, 8080), policy.DenyPending)
}

func TestClusterPolicyThatIsNotUnderstoodFailsClosed(t *testing.T) {
	var values []string
	var many []policy.Port
	for i := range compile.MaxLines + 1 {
		values = append(values, fmt.Sprint(i))
		many = append(many, policy.Port{Proto: policy.TCP, First: uint16(1 + 2*i),
			Last: uint16(1 + 2*i)})
	}
	large := policy.Selector{{Key: "a", Op: policy.In, Values: values}}
	ports := rule(policy.Accept)
	ports.Ports = many

	for name, tt := range map[string]struct {
		policy  policy.ClusterPolicy
		want    policy.Verdict
		problem string
	}{
		"invalid": {policy.ClusterPolicy{Name: "a", Invalid: "why", Denies: [2]bool{true}},
			policy.DenyAdmin, "why"},
		"invalid in the other direction": {policy.ClusterPolicy{Name: "a", Invalid: "why",
			Denies: [2]bool{false, true}}, policy.Allow, "why"},
		"too many lines": {clusterPolicy("a", policy.Baseline, 0, ports), policy.DenyBaseline,
			"more than 4096 lines"},
		"large subject": {policy.ClusterPolicy{Name: "a", Pods: large,
			Rules: [2][]policy.ClusterRule{{rule(policy.Accept)}}}, policy.DenyAdmin,
			"it selects all pods"},
		"unknown peer accepted": {clusterPolicy("a", policy.Admin, 0,
			policy.ClusterRule{Unknown: true}, rule(policy.Accept)), policy.Allow, "does not know"},
		"unknown peer denied": {clusterPolicy("a", policy.Admin, 0,
			policy.ClusterRule{Unknown: true, Action: policy.Deny}, rule(policy.Accept)),
			policy.DenyAdmin, "does not know"},
		"unknown peer passed": {clusterPolicy("a", policy.Admin, 0,
			policy.ClusterRule{Unknown: true, Action: policy.Pass}, rule(policy.Accept)),
			policy.DenyAdmin, "does not know"},
		"no peers": {clusterPolicy("a", policy.Admin, 0,
			policy.ClusterRule{Action: policy.Deny}), policy.DenyAdmin, "does not know"},
	} {
		t.Run(name, func(t *testing.T) {
			p := shop()
			p.PutClusterPolicy(tt.policy)
			expect(t, p, from(2, 8080), tt.want)
			if got := p.Plan().ClusterProblems["a"]; !strings.Contains(got, tt.problem) {
				t.Errorf("problem %q, want %q in it", got, tt.problem)
			}
			p.DeleteClusterPolicy("a")
			expect(t, p, from(2, 8080), policy.Allow)
			if len(p.Plan().ClusterProblems) > 0 {
				t.Error("the problem outlives the policy")
			}
		})
	}
}

func TestNodesArePeers(t *testing.T) {
	p := shop()
	gpus := labelled("gpu", "yes")
	p.PutClusterPolicy(policy.ClusterPolicy{Name: "a", Rules: [2][]policy.ClusterRule{nil, {{
		Action: policy.Deny, Peers: []policy.Peer{{Nodes: gpus}}}}}})
	to := policy.Flow{Src: policytest.PodAddrs(1)[0], Dst: policytest.Outside[0], FromPod: true,
		Proto: policy.TCP, Port: 80}
	expect(t, p, to, policy.Allow)
	nodes := func(gpu string, addrs ...netip.Addr) {
		p.SetNodes(map[string]policy.PeerNode{"n": {Labels: map[string]string{"gpu": gpu},
			Addrs: addrs}})
	}
	nodes("yes", policytest.Outside...)
	expect(t, p, to, policy.DenyAdmin)
	nodes("no", policytest.Outside...)
	expect(t, p, to, policy.Allow)
	nodes("yes")
	expect(t, p, to, policy.Allow)
	nodes("yes", policytest.Outside...)
	v, err := explain.Pod(p, web, p.Plan())
	if err != nil || len(v.Egress.Admin) != 1 || v.Egress.Admin[0].Members != 2 ||
		v.Egress.Admin[0].Peers != "nodes with gpu=yes" {
		t.Errorf("view with a peer of nodes: %+v, %v", v, err)
	}

	p.PutClusterPolicy(policy.ClusterPolicy{Name: "a", Rules: [2][]policy.ClusterRule{nil, {{
		Peers: []policy.Peer{{Nodes: gpus}}, Ports: []policy.Port{{Proto: policy.TCP,
			Name: "web"}}}}}})
	if got := p.Plan().ClusterProblems["a"]; !strings.Contains(got, "no named ports") {
		t.Errorf("problem %q", got)
	}
	expect(t, p, to, policy.DenyAdmin)
}
