// Package plantest has inputs of small clusters. Only tests of the agent and of its plan import it.
package plantest

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/agent/plan"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// Peer returns a node with a claim; its endpoints are its addresses.
func Peer(name string, mtu int, key byte, nodeAddrs []netip.Addr,
	pods []netip.Prefix) cluster.Node {
	n := cluster.Node{Name: name, Addresses: nodeAddrs, PodPrefixes: pods, Claim: &cluster.Claim{
		Keys: []cluster.Key{{Public: wgkey.Public{key}}}, PodPrefixes: pods, MTU: mtu,
	}}
	for _, a := range nodeAddrs {
		n.Claim.Endpoints = append(n.Claim.Endpoints, netip.AddrPortFrom(a, abi.TunnelPort))
	}
	return n
}

// Two returns the inputs of a dual-stack cluster of this node and one peer.
func Two(t *testing.T) plan.Inputs {
	t.Helper()
	key, err := wgkey.Generate()
	errtest.Must(t, err)
	cfg := config.Default()
	cfg.Node = "a"
	cfg.ClusterRanges = prefixes("198.19.0.0/16", "fd42:1::/48")
	cfg.ServiceRanges = prefixes("198.18.128.0/20", "fd42:2::/112")
	self := cluster.Node{Name: "a", Addresses: addrs("198.18.0.11", "fd42::b"),
		PodPrefixes: prefixes("198.19.1.0/24", "fd42:1:0:1::/64")}
	b := Peer("b", 1500, 2, addrs("198.18.0.12", "fd42::c"),
		prefixes("198.19.2.0/24", "fd42:1:0:2::/64"))
	return plan.Inputs{
		Config: cfg, Key: key, Complete: true, Synced: true, UnderlayMTU: 1500,
		LocalAddrs: addrs("198.18.0.11", "fd42::b"),
		Table: cluster.Table{Self: &self, Peers: []cluster.Node{b},
			NodeAddrs: addrs("198.18.0.11", "198.18.0.12", "fd42::b", "fd42::c")},
	}
}

// WithSite adds an open site to in. Its only node has no features.
func WithSite(in *plan.Inputs) {
	in.Config.NodeRanges = prefixes("198.18.0.0/24", "fd42::/64")
	in.Config.ServiceRanges = prefixes("198.18.128.0/20", "fd42:2::/112")
	in.Config.Sites = []cluster.Site{{Name: "s", Reach: cluster.ReachAll,
		PodRanges:  prefixes("198.18.64.0/20", "fd42:5::/48"),
		NodeRanges: prefixes("198.18.9.0/24", "fd42:9::/64")}}
	in.Table.Peers = append(slices.Clone(in.Table.Peers), Peer(cluster.SiteNodeName("s", "b"), 1500,
		3, addrs("198.18.9.1", "fd42:9::1"), prefixes("198.18.64.0/24", "fd42:5::/64")))
}

var prefixes, addrs = nettest.Prefixes, nettest.Addrs
