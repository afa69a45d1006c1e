package planner_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
	"github.com/kubeveil/kubeveil/pkg/policy/policytest"
)

// excessShop returns shop with too many labels on the pod of this node or, if subject is false, on
// the client.
func excessShop(subject bool) *planner.Planner {
	p := shop()
	p.SetRanges([]netip.Prefix{netip.MustParsePrefix("198.18.0.0/24")})
	if subject {
		p.PutPod(policy.Pod{Name: web, UID: "1", Node: "here", Excess: true})
		return p
	}
	p.PutPod(policy.Pod{Name: policy.Name{Namespace: "shop", Name: "client"}, UID: "2",
		Node: "there", Addrs: policytest.PodAddrs(2), Excess: true})
	return p
}

// allow allows all peers and isolates the pods that subjects selects.
func allow(name string, subjects *policy.Selector, peers ...policy.Peer) policy.Policy {
	p := policy.Policy{Name: policy.Name{Namespace: "shop", Name: name},
		Isolates: [2]bool{true}, Rules: [2][]policy.Rule{{{Peers: peers}}}}
	if subjects != nil {
		p.Subjects = *subjects
	}
	return p
}

func TestSubjectWithExcessIsIsolatedByEveryPolicyOfItsNamespace(t *testing.T) {
	p := excessShop(true)
	expect(t, p, from(2, 8080), policy.Allow)
	other := allow("other", nil)
	other.Namespace = "elsewhere"
	p.PutPolicy(other)
	expect(t, p, from(2, 8080), policy.Allow)

	// The policy may not be meant for the pod, so it does not allow anything to it either.
	p.PutPolicy(allow("web", labelled("app", "web")))
	expect(t, p, from(2, 8080), policy.DenyIngress)
	if m := p.Plan().Members[webKey]; len(m.Policies) != 1 {
		t.Errorf("selected by %v", m.Policies)
	}

	p.PutPolicy(allow("all", nil))
	expect(t, p, from(2, 8080), policy.Allow)
	p.DeletePolicy(policy.Name{Namespace: "shop", Name: "all"})
	expect(t, p, from(2, 8080), policy.DenyIngress)

	p.PutPod(policy.Pod{Name: web, UID: "1", Node: "here",
		Labels: map[string]string{"app": "web"}})
	expect(t, p, from(2, 8080), policy.Allow)
}

func TestPeerWithExcessIsSelectedByNone(t *testing.T) {
	for name, peer := range map[string]policy.Peer{
		"all pods of the namespace": {Pods: &policy.Selector{}},
		"all pods":                  {Namespaces: &policy.Selector{}},
		"pods without a label": {Pods: &policy.Selector{
			{Key: "a", Op: policy.DoesNotExist}}},
	} {
		t.Run(name, func(t *testing.T) {
			p := shop()
			p.PutPolicy(allow("a", nil, peer))
			expect(t, p, from(2, 8080), policy.Allow)

			p = excessShop(false)
			p.PutPolicy(allow("a", nil, peer))
			expect(t, p, from(2, 8080), policy.DenyIngress)
		})
	}
}

// Every flow is denied that the policies would deny for any value of the labels that were not kept.
func TestClusterPoliciesFailClosedForExcess(t *testing.T) {
	for _, of := range []string{"subject", "peer", "namespace of the subject",
		"namespace of the peer"} {
		for _, tier := range []policy.Tier{policy.Admin, policy.Baseline} {
			for _, action := range []policy.Action{policy.Accept, policy.Deny, policy.Pass} {
				t.Run(fmt.Sprint(of, " ", tier, " ", action), func(t *testing.T) {
					testExcessOf(t, of, tier, action)
				})
			}
		}
	}
}

func testExcessOf(t *testing.T, of string, tier policy.Tier, action policy.Action) {
	p := shop()
	p.SetRanges([]netip.Prefix{netip.MustParsePrefix("198.18.0.0/24")})
	client := policy.Pod{Name: policy.Name{Namespace: "far", Name: "client"}, UID: "3",
		Node: "there", Addrs: policytest.PodAddrs(3), Labels: map[string]string{"app": "client"}}
	subject := policy.Pod{Name: web, UID: "1", Node: "here",
		Labels: map[string]string{"app": "web"}}
	near := policy.Namespace{Name: "shop", Labels: map[string]string{"team": "a"}}
	far := policy.Namespace{Name: "far", Labels: map[string]string{"team": "a"}}
	put := func() {
		p.PutPod(client)
		p.PutPod(subject)
		p.PutNamespace(near)
		p.PutNamespace(far)
	}
	put()
	p.PutClusterPolicy(policy.ClusterPolicy{Name: "a", Tier: tier,
		Namespaces: *labelled("team", "a"), Pods: *labelled("app", "web"),
		Rules: [2][]policy.ClusterRule{{{Action: action, Peers: []policy.Peer{{
			Namespaces: labelled("team", "a"), Pods: labelled("app", "client")}}}}}})
	// Flows that rule a neither passes nor denies are accepted. Flows that it passes are denied.
	p.PutClusterPolicy(clusterPolicy("b", tier, 1, policy.ClusterRule{Action: policy.Accept,
		Peers: []policy.Peer{{Namespaces: &policy.Selector{}}, {Block: &policy.Block{
			CIDR: netip.MustParsePrefix("0.0.0.0/0")}}}}))
	p.PutClusterPolicy(clusterPolicy("c", policy.Baseline, 2, policy.ClusterRule{
		Action: policy.Deny, Peers: []policy.Peer{{Namespaces: &policy.Selector{}}}}))

	certain := p.Plan().Judge(from(3, 8080))
	switch of {
	case "subject":
		subject.Labels, subject.Excess = nil, true
	case "peer":
		client.Labels, client.Excess = nil, true
	case "namespace of the subject":
		near.Labels, near.Excess = nil, true
	case "namespace of the peer":
		far.Labels, far.Excess = nil, true
	}
	put()
	doubtful := p.Plan().Judge(from(3, 8080))
	if doubtful == policy.Allow && certain != policy.Allow {
		t.Errorf("with all labels %s, without %s", certain, doubtful)
	}
	if action != policy.Accept && doubtful == policy.Allow {
		t.Errorf("%s counts as %s", action, doubtful)
	}
}

// An ingress rule for a named port of the subject denies if the subject's ports are not known.
func TestNamedPortOfASubjectWithExcessIsDenied(t *testing.T) {
	p := excessShop(true)
	deny := rule(policy.Deny)
	deny.Ports = []policy.Port{{Proto: policy.TCP, Name: "http"}}
	p.PutClusterPolicy(clusterPolicy("a", policy.Admin, 0, deny))
	expect(t, p, from(2, 8080), policy.DenyAdmin)
}

func TestNodeWithExcessIsSelectedWhereARuleDenies(t *testing.T) {
	for action, want := range map[policy.Action]policy.Verdict{policy.Accept: policy.DenyEgress,
		policy.Deny: policy.DenyAdmin} {
		for _, excess := range []bool{false, true} {
			p := shop()
			p.PutPolicy(policy.Policy{Name: policy.Name{Namespace: "shop", Name: "deny"},
				Isolates: [2]bool{policy.Egress: true}})
			addr := netip.MustParseAddr("203.0.113.9")
			p.SetNodes(map[string]policy.PeerNode{"n": {Excess: excess, Addrs: []netip.Addr{addr}}})
			p.PutClusterPolicy(policy.ClusterPolicy{Name: "a", Rules: [2][]policy.ClusterRule{
				policy.Egress: {{Action: action, Peers: []policy.Peer{{Nodes: &policy.Selector{
					{Key: "a", Op: policy.DoesNotExist}}}}}}}})
			verdict := want
			if !excess && action == policy.Accept {
				verdict = policy.Allow
			}
			expect(t, p, policy.Flow{FromPod: true, Src: policytest.PodAddrs(1)[0], Dst: addr,
				Proto: policy.TCP, Port: 1}, verdict)
		}
	}
}
