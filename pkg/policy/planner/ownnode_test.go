package planner_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/compile"
	"github.com/kubeveil/kubeveil/pkg/policy/policytest"
)

// toNode returns a connection of web to its own node.
func toNode() policy.Flow {
	return policy.Flow{Src: policytest.PodAddrs(1)[0], Dst: netip.MustParseAddr("192.0.2.1"),
		FromPod: true, ToNode: true, Proto: policy.TCP, Port: 53}
}

// denyNodes returns a ClusterNetworkPolicy of the Admin tier that denies nodes, on this number of
// ports.
func denyNodes(name string, ports int) policy.ClusterPolicy {
	all := policy.Selector{}
	rule := policy.ClusterRule{Action: policy.Deny, Peers: []policy.Peer{{Nodes: &all}}}
	for i := range ports {
		n := uint16(1 + 2*i)
		rule.Ports = append(rule.Ports, policy.Port{Proto: policy.TCP, First: n, Last: n})
	}
	return policy.ClusterPolicy{Name: name, Rules: [2][]policy.ClusterRule{nil, {rule}}}
}

func TestOwnNodeIsOpenForNetworkPoliciesOnly(t *testing.T) {
	p := shop()
	p.SetOptions(policy.Options{AllowOwnNode: true})
	p.PutPolicy(policy.Policy{Name: policy.Name{Namespace: "shop", Name: "deny"},
		Isolates: [2]bool{true, true}})
	expect(t, p, toNode(), policy.Allow)

	elsewhere := toNode()
	elsewhere.ToNode = false
	expect(t, p, elsewhere, policy.DenyEgress)

	p.SetNodes(map[string]policy.PeerNode{"here": {Addrs: []netip.Addr{toNode().Dst}}})
	p.PutClusterPolicy(denyNodes("nodes", 0))
	expect(t, p, toNode(), policy.DenyAdmin)

	p.DeletePod(web)
	expect(t, p, toNode(), policy.DenyPending)
}

// If lines exceed a bound, the chain has no Admin tier either. Flows that this tier may have denied
// stay denied.
func TestBoundWithoutAnAdminTierKeepsTheOwnNodeClosed(t *testing.T) {
	p := shop()
	p.SetOptions(policy.Options{AllowOwnNode: true})
	for i := range compile.MaxChainLines/compile.MaxLines + 1 {
		p.PutClusterPolicy(denyNodes(fmt.Sprint("nodes-", i), compile.MaxLines-i))
	}
	if got := p.Plan().Members[webKey].Problem; !strings.Contains(got, "everything is denied") {
		t.Fatalf("problem %q", got)
	}
	expect(t, p, toNode(), policy.DenyAdmin)
}
