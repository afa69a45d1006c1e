package planner_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
)

// A pod whose blocks and ports cross too often is denied in that direction, with a reason. A set
// that the kernel would refuse is never made.
func TestCrossingBlocksDeny(t *testing.T) {
	p := planner.New("here")
	pod := policy.Pod{Name: policy.Name{Namespace: "a", Name: "pod"}, UID: "1", Node: "here"}
	p.PutPod(pod)
	own := netip.MustParseAddr("198.19.0.1")
	p.SetAttached(pod.Key(), []netip.Addr{own})
	var rules []policy.Rule
	for i := range 1000 {
		one := netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}), 32)
		rules = append(rules,
			policy.Rule{Peers: []policy.Peer{{Block: &policy.Block{CIDR: one}}},
				Ports: []policy.Port{{Proto: policy.TCP, First: 1, Last: uint16(65000 - i)}}},
			policy.Rule{Ports: []policy.Port{{Proto: policy.TCP, First: uint16(60 * i),
				Last: uint16(60*i + 1)}}})
	}
	p.PutPolicy(policy.Policy{Name: policy.Name{Namespace: "a", Name: "grid"},
		Isolates: [2]bool{false, true}, Rules: [2][]policy.Rule{nil, rules}})
	plan := p.Plan()
	m := plan.Members[pod.Key()]
	if m == nil || !strings.Contains(m.Problem, "overlap in more than") {
		t.Fatalf("member %+v", m)
	}
	if v := plan.Judge(policy.Flow{Src: own, Dst: netip.MustParseAddr("198.18.0.1"), FromPod: true,
		Proto: policy.TCP, Port: 2}); v != policy.DenyEgress {
		t.Errorf("verdict %s", v)
	}
}
