package nftables_test

import (
	"net/netip"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
	"github.com/kubeveil/kubeveil/pkg/policy/policytest"
)

// tiered returns the lab of two with an Admin tier whose first rule denies port 80 of all pods to
// pods with the label app=bad.
func tiered(t *testing.T) (*lab, *planner.Planner) {
	l, p := two(t)
	p.PutNamespace(policy.Namespace{Name: "a"})
	bad := policy.Selector{{Key: "app", Values: []string{"bad"}}}
	client := policy.Selector{{Key: "app", Values: []string{"client"}}}
	peer := func(s *policy.Selector) []policy.Peer {
		return []policy.Peer{{Namespaces: &policy.Selector{}, Pods: s}}
	}
	p.PutClusterPolicy(policy.ClusterPolicy{Name: "admin",
		Rules: [2][]policy.ClusterRule{{
			{Action: policy.Pass, Peers: peer(&client)},
			{Action: policy.Deny, Peers: peer(&bad),
				Ports: []policy.Port{{Proto: policy.TCP, First: 80, Last: 80}}},
			{Action: policy.Accept, Peers: peer(&policy.Selector{})},
		}}})
	p.SetRanges([]netip.Prefix{netip.MustParsePrefix("198.18.0.0/24"),
		netip.MustParsePrefix("fd42::/64")})
	return l, p
}

func bad(i int) policy.Pod {
	return policy.Pod{Name: policy.Name{Namespace: "a", Name: "bad"}, UID: "bad", Node: "there",
		Labels: map[string]string{"app": "bad"}, Addrs: policytest.PodAddrs(i)}
}

func TestTiersDropWithTheirReasons(t *testing.T) {
	l, p := tiered(t)
	p.PutPod(bad(5))
	plan := p.Plan()
	l.apply(plan)
	l.list()
	l.arrive(to(l, 2, 80), true)  // passed to the NetworkPolicy, which allows it
	l.arrive(to(l, 2, 81), false) // passed, and not allowed
	l.arrive(to(l, 3, 81), true)  // accepted before the NetworkPolicy
	l.arrive(to(l, 5, 80), false)
	l.arrive(to(l, 6, 80), false) // no pod is known for it

	l.node.Run(t, func() error {
		drops, err := nftables.Drops()
		if drops["policy_ingress"] != 2 || drops["policy_admin"] != 2 ||
			drops["policy_unknown_peer"] != 2 {
			t.Errorf("counted %v", drops)
		}
		return err
	})

	l.table.Close()
	l.table = nftables.PolicyTable{}
	if n := l.apply(plan); n != 0 {
		t.Errorf("a restarted daemon made %d changes", n)
	}
}

// A pod that is added to a denied set may have connections, so less may be allowed.
func TestNewMemberOfADeniedSetShrinks(t *testing.T) {
	l, p := tiered(t)
	l.apply(p.Plan())
	p.PutPod(bad(5))
	l.node.Run(t, func() error {
		result, err := l.table.Apply(p.Plan())
		if !result.Shrinks || result.Changes == 0 {
			t.Errorf("%+v, want one that shrinks", result)
		}
		return err
	})
}
