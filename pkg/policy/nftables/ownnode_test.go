package nftables_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
	"github.com/kubeveil/kubeveil/pkg/policy/policytest"
)

// nodeAddrs are addresses of the node itself, one a family.
var nodeAddrs = []netip.Addr{netip.MustParseAddr("198.19.0.1"), netip.MustParseAddr("fd42:ff::1")}

// ownNode returns a lab whose pod 2 is isolated for egress, with or without the option
// AllowOwnNode.
func ownNode(t *testing.T, allow bool) (*lab, *planner.Planner) {
	l, _ := two(t)
	for _, a := range nodeAddrs {
		nettest.AddAddr(t, l.node, "lo", netip.PrefixFrom(a, a.BitLen()))
	}
	w := policytest.NewWorld()
	w.AllowOwnNode = allow
	p := w.NewPlanner()
	attach(w, p, 2, map[string]string{"app": "client"})
	p.PutNamespace(policy.Namespace{Name: "a"})
	p.PutPolicy(policy.Policy{Name: policy.Name{Namespace: "a", Name: "all"},
		Isolates: [2]bool{false, true}})
	return l, p
}

// reaches connects pod i to a closed port of its node, which refuses if the packet passes. It also
// judges the packet by the table in the kernel.
func (l *lab) reaches(i int, plan *policy.Plan, want policy.Verdict) {
	l.t.Helper()
	for f, a := range nodeAddrs {
		err := dial(l.pods[i], a, want == policy.Allow)
		if answered := err != nil && strings.Contains(err.Error(), "refused"); answered !=
			(want == policy.Allow) {
			l.t.Errorf("pod %d to its node %s: %v, want %s", i, a, err, want)
		}
		flow := policy.Flow{Src: policytest.PodAddrs(i)[f], Dst: a, FromPod: true, ToNode: true,
			Proto: policy.TCP, Port: 80}
		got, err := judge(l.node, flow)
		errtest.Must(l.t, err)
		if planned := plan.Judge(flow); got[0].Verdict != want || planned != want {
			l.t.Errorf("pod %d to its node %s: the table says %s by %q, the plan %s, want %s", i, a,
				got[0].Verdict, got[0].Rule, planned, want)
		}
	}
}

func TestOwnNodeIsReachedWhereItIsAllowed(t *testing.T) {
	l, p := ownNode(t, true)
	plan := p.Plan()
	l.apply(plan)
	l.reaches(2, plan, policy.Allow)
	l.reaches(3, plan, policy.DenyPending)
	for f := range 2 { // Only the node itself is allowed.
		l.arrive([]policy.Flow{{Src: policytest.PodAddrs(2)[f], Dst: policytest.Outside[f],
			FromPod: true, Proto: policy.TCP, Port: 80}}, false)
	}

	all := policy.Selector{}
	p.SetNodes(map[string]policy.PeerNode{"here": {Addrs: nodeAddrs}})
	p.PutClusterPolicy(policy.ClusterPolicy{Name: "nodes", Rules: [2][]policy.ClusterRule{nil,
		{{Action: policy.Deny, Peers: []policy.Peer{{Nodes: &all}}}}}})
	plan = p.Plan()
	l.apply(plan)
	l.reaches(2, plan, policy.DenyAdmin)

	// Pass leaves the decision to NetworkPolicies.
	p.PutClusterPolicy(policy.ClusterPolicy{Name: "nodes", Rules: [2][]policy.ClusterRule{nil,
		{{Action: policy.Pass, Peers: []policy.Peer{{Nodes: &all}}}}}})
	plan = p.Plan()
	l.apply(plan)
	l.reaches(2, plan, policy.Allow)
}

// A daemon that starts with another option changes the rules that it finds.
func TestOwnNodeIsClosedAgainByARestart(t *testing.T) {
	l, p := ownNode(t, true)
	open := p.Plan()
	l.apply(open)
	l.reaches(2, open, policy.Allow)

	closed := *open
	closed.AllowOwnNode = false
	for _, restart := range []bool{true, false} {
		l.apply(open)
		if restart {
			l.table.Close()
			l.table = nftables.PolicyTable{}
		}
		l.node.Run(t, func() error {
			result, err := l.table.Apply(&closed)
			if !result.Shrinks {
				t.Error("the daemon does not know that less is allowed")
			}
			return err
		})
		l.reaches(2, &closed, policy.DenyEgress)
	}
}
