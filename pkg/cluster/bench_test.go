package cluster_test

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// manyNodes is a dual-stack cluster of n nodes, as a source yields it.
func manyNodes(n int) (cluster.Rules, cluster.State) {
	rules := cluster.Rules{
		Self: "node-00000",
		ClusterRanges: []netip.Prefix{netip.MustParsePrefix("100.64.0.0/10"),
			netip.MustParsePrefix("fd42:aaaa::/32")},
		ServiceRanges: []netip.Prefix{netip.MustParsePrefix("198.19.0.0/16")},
		NodeRanges:    []netip.Prefix{netip.MustParsePrefix("198.18.0.0/16")},
	}
	s := cluster.State{Revision: 1, Synced: true,
		APIServers: []netip.Addr{netip.MustParseAddr("198.18.1.250")}}

	for i := range n {
		name := fmt.Sprintf("node-%05d", i)
		addr := netip.AddrFrom4([4]byte{198, 18, byte(10 + i/200), byte(1 + i%200)})
		prefixes := []netip.Prefix{
			netip.PrefixFrom(netip.AddrFrom4([4]byte{100, byte(64 + i/256), byte(i), 0}), 24),
			netip.MustParsePrefix(fmt.Sprintf("fd42:aaaa:0:%x::/64", i)),
		}
		s.Nodes = append(s.Nodes, cluster.Node{
			Name: name, Created: time.Date(2026, 1, 1, 0, 0, i*7919%1000, 0, time.UTC),
			Addresses: []netip.Addr{addr}, PodPrefixes: prefixes,
			Claim: &cluster.Claim{
				Keys:      []cluster.Key{{Public: wgkey.Public(sha256.Sum256([]byte(name)))}},
				Endpoints: []netip.AddrPort{netip.AddrPortFrom(addr, 51820)}, PodPrefixes: prefixes,
				MTU: 1500,
			},
		})
	}

	return rules, s
}

// changedNode is a source's next state, in which one of a thousand endpoints changed, and the last
// good table.
func changedNode(t testing.TB) (cluster.Rules, cluster.State, *cluster.Table) {
	rules, s := manyNodes(1000)
	last, refusals := cluster.Resolve(rules, s, nil)
	if len(refusals) > 0 || len(last.Peers) != 999 {
		t.Fatalf("%d peers, %v", len(last.Peers), refusals)
	}
	s.Nodes = slices.Clone(s.Nodes)
	claim := *s.Nodes[500].Claim
	claim.Endpoints = []netip.AddrPort{netip.AddrPortFrom(claim.Endpoints[0].Addr(), 40000)}
	s.Nodes[500].Claim = &claim
	return rules, s, &last
}

// Unchanged nodes are not copied, because the garbage of a thousand copies would cost a turn more
// than its decisions.
func TestResolveCopiesLittle(t *testing.T) {
	rules, s, last := changedNode(t)
	allocated := testing.AllocsPerRun(5, func() { cluster.Resolve(rules, s, last) })
	if allocated > 10*1000 {
		t.Errorf("a thousand nodes of which one changed: %.0f allocations, want ten a node at most",
			allocated)
	}
}
