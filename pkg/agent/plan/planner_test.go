package plan_test

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/agent/plan"
	"github.com/kubeveil/kubeveil/pkg/agent/plan/plantest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/tunnel"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// The function Decide, which remembers nothing, is the oracle of a planner.
func TestPlannerDecidesAsDecide(t *testing.T) {
	first := plantest.Two(t)
	same := cmp.Options{cmpopts.EquateEmpty(),
		cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}, netip.AddrPort{})}
	rapid.Check(t, func(t *rapid.T) {
		in := first
		var p plan.Planner
		for step := range 15 {
			in.Table.Peers = genPeers(t)
			in.Synced = rapid.IntRange(0, 4).Draw(t, "synced") > 0
			in.UnderlayMTU = rapid.SampledFrom([]int{1500, 1500, 1400}).Draw(t, "mtu")
			in.PathMTU = rapid.SampledFrom([]map[string]int{nil, {"node-1": 1200},
				{"node-2": 1300}}).Draw(t, "paths")
			in.Config.Source.Kind = rapid.SampledFrom([]string{config.SourceKubernetes,
				config.SourceSnapshot}).Draw(t, "source")
			in.Config.Tunnel.Keepalive = rapid.SampledFrom([]int{0, 0, 25}).Draw(t, "keepalive")

			want, got := plan.Decide(in), p.Decide(in)
			for what, d := range map[string]string{
				"routing": diff(want.Host, got.Host, same),
				"tunnels": diffTunnels(want.Tunnel, got.Tunnel, same),
				"guard":   diff(want.Guard, got.Guard, same),
				"notes":   diff(want.Notes, got.Notes, same),
				"sources": diff(want.TunnelSources, got.TunnelSources),
				"probed":  diff(fresh(in).ProbePeers(in, want), p.ProbePeers(in, got), same),
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

// fresh returns a planner whose first decision was about in.
func fresh(in plan.Inputs) *plan.Planner {
	var p plan.Planner
	p.Decide(in)
	return &p
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
		key := byte(10*i + rapid.IntRange(1, 2).Draw(t, "key"))
		n := plantest.Peer(fmt.Sprint("node-", i), 1500, key,
			nodeAddrs[kind/2:], pods[:1+kind%2])
		if rapid.Bool().Draw(t, "bound") {
			n.Claim.Features = cluster.Features()
		}
		peers = append(peers, n)
	}
	return peers
}
