package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/tunnel"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// The function decide, which remembers nothing, is the oracle of a planner.
func TestPlannerDecidesAsDecide(t *testing.T) {
	first := two(t)
	same := cmp.Options{cmpopts.EquateEmpty(),
		cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}, netip.AddrPort{})}
	rapid.Check(t, func(t *rapid.T) {
		in := first
		var p planner
		for step := range 15 {
			in.table.Peers = genPeers(t)
			in.synced = rapid.IntRange(0, 4).Draw(t, "synced") > 0
			in.underlayMTU = rapid.SampledFrom([]int{1500, 1500, 1400}).Draw(t, "mtu")
			in.pathMTU = rapid.SampledFrom([]map[string]int{nil, {"node-1": 1200},
				{"node-2": 1300}}).Draw(t, "paths")
			in.cfg.Source.Kind = rapid.SampledFrom([]string{config.SourceKubernetes,
				config.SourceSnapshot}).Draw(t, "source")
			in.cfg.Tunnel.Keepalive = rapid.SampledFrom([]int{0, 0, 25}).Draw(t, "keepalive")

			want, got := decide(in), p.decide(in)
			for what, d := range map[string]string{
				"routing": diff(want.host, got.host, same),
				"tunnels": diffTunnels(want.tunnel, got.tunnel, same),
				"guard":   diff(want.guard, got.guard, same),
				"notes":   diff(want.notes, got.notes, same),
				"sources": diff(want.tunnelSources, got.tunnelSources),
				"probed": diff(new(planner).fresh(in).probePeers(in, want),
					p.probePeers(in, got), same),
			} {
				if d != "" {
					t.Fatalf("step %d: %s (-want +got):\n%s", step, what, d)
				}
			}
		}
	})
}

// diff is cmp.Diff for values that are mostly equal: comparing these with cmp takes most of the
// time of a test.
func diff(want, got any, opts ...cmp.Option) string {
	if reflect.DeepEqual(want, got) {
		return ""
	}
	return cmp.Diff(want, got, opts...)
}

// diffTunnels is diff for tunnels, whose keys cannot be compared by reflection.
func diffTunnels(want, got tunnel.Spec, opts ...cmp.Option) string {
	withoutKeys := func(s tunnel.Spec) (tunnel.Spec, []wgkey.Private) {
		var keys []wgkey.Private
		s.Devices = slices.Clone(s.Devices)
		for i := range s.Devices {
			keys = append(keys, s.Devices[i].PrivateKey)
			s.Devices[i].PrivateKey = wgkey.Private{}
		}
		return s, keys
	}

	want, wantKeys := withoutKeys(want)
	got, gotKeys := withoutKeys(got)
	if !slices.EqualFunc(wantKeys, gotKeys, wgkey.Private.Equal) {
		return "the private keys differ"
	}
	return diff(want, got, opts...)
}

// fresh returns p after it decided about in.
func (p *planner) fresh(in inputs) *planner {
	p.decide(in)
	return p
}

// genPeers returns peers, sorted by name, of a few kinds.
func genPeers(t *rapid.T) (peers []cluster.Node) {
	for i := range 5 {
		if rapid.IntRange(0, 3).Draw(t, "has") == 0 {
			continue
		}
		kind := rapid.IntRange(0, 3).Draw(t, "kind")
		nodeAddrs := addrs(fmt.Sprintf("198.18.0.%d", 20+i), fmt.Sprintf("fd42::%d", 20+i))
		pods := prefixes(fmt.Sprintf("198.19.%d.0/24", 20+i), fmt.Sprintf("fd42:1:0:%d::/64", 20+i))
		n := peer(fmt.Sprint("node-", i), 1500, byte(10*i+rapid.IntRange(1, 2).Draw(t, "key")),
			nodeAddrs[kind/2:], pods[:1+kind%2])
		if rapid.Bool().Draw(t, "bound") {
			n.Claim.Features = cluster.Features()
		}
		peers = append(peers, n)
	}
	return peers
}

// Features that use only where nodes are need not look at a node that has a new key.
func TestANewKeyLeavesPlacesAsTheyWere(t *testing.T) {
	a, first, _, _ := twoFeatures()
	l := &loop{Agent: a}
	in := two(t)
	turn := func(what string, want bool) {
		t.Helper()
		d := l.planner.decide(in)
		l.turnFeatures(in, &d)
		if got := first.turns[len(first.turns)-1].SamePlaces; got != want {
			t.Errorf("%s: same places %t, want %t", what, got, want)
		}
	}
	change := func(f func(n *cluster.Node)) {
		in.table.Peers = slices.Clone(in.table.Peers)
		claim := *in.table.Peers[0].Claim
		in.table.Peers[0].Claim = &claim
		f(&in.table.Peers[0])
	}

	turn("the first turn", false)
	turn("no change", true)
	change(func(n *cluster.Node) { n.Claim.Keys = []cluster.Key{{Epoch: 2}} })
	turn("a new key", true)
	change(func(n *cluster.Node) {
		n.Claim.Endpoints = []netip.AddrPort{netip.MustParseAddrPort("198.18.0.12:1")}
	})
	turn("another endpoint", false)
	change(func(n *cluster.Node) { n.PodPrefixes = prefixes("198.19.9.0/24") })
	turn("another prefix", false)
	in.table.NodeAddrs = slices.Clone(in.table.NodeAddrs)
	turn("other node addresses", false)
	first.fails = errors.New("no")
	turn("a feature fails", true)
	turn("after a failure", false)
	first.fails, in.complete = nil, false
	turn("an incomplete table", false)
	in.complete = true
	turn("the first complete table", false)
	turn("the next", true)
}
