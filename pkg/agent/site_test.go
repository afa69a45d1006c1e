package agent

import (
	"slices"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/config"
)

// withSite adds an open site to in. Its only node has no features.
func withSite(in *inputs) {
	in.cfg.NodeRanges = prefixes("198.18.0.0/24", "fd42::/64")
	in.cfg.ServiceRanges = prefixes("198.18.128.0/20", "fd42:2::/112")
	in.cfg.Sites = []cluster.Site{{Name: "s", Reach: cluster.ReachAll,
		PodRanges:  prefixes("198.18.64.0/20", "fd42:5::/48"),
		NodeRanges: prefixes("198.18.9.0/24", "fd42:9::/64")}}
	in.table.Peers = append(slices.Clone(in.table.Peers), peer(cluster.SiteNodeName("s", "b"), 1500,
		3, addrs("198.18.9.1", "fd42:9::1"), prefixes("198.18.64.0/24", "fd42:5::/64")))
}

// The ranges of a site are closed with and without a table, and its nodes are peers.
func TestDecideWithASite(t *testing.T) {
	in := two(t)
	withSite(&in)
	d := decide(in)
	if len(d.problems)+len(d.notes) > 0 {
		t.Fatalf("problems %q, notes %q", d.problems, d.notes)
	}
	if n := len(d.host.Peers); n != 2 || d.host.Peers[1].Name != "s/b" ||
		len(d.host.Peers[1].Devices) != 1 || len(d.tunnel.Devices[0].Peers) != 2 {
		t.Errorf("routes to %+v", d.host.Peers)
	}

	in.table, in.complete = cluster.Table{}, false
	for _, d := range []decision{d, decide(in)} {
		pods := in.cfg.Sites[0].PodRanges[0]
		if !slices.Contains(d.guard.Ranges, pods) || !slices.Contains(d.host.ClusterRanges, pods) ||
			!slices.Contains(d.host.ClosedRanges, in.cfg.Sites[0].NodeRanges[1]) ||
			slices.Contains(d.guard.Ranges, in.cfg.Sites[0].NodeRanges[0]) {
			t.Errorf("not closed: guard %v, routes %v and %v", d.guard.Ranges, d.host.ClusterRanges,
				d.host.ClosedRanges)
		}
	}
}

// A node of a site with an older version does not make this node accept datagrams from anywhere.
func TestSitesDoNotOpenTheTunnelPort(t *testing.T) {
	in := two(t)
	in.cfg.Source.Kind = config.SourceKubernetes
	in.table.Peers[0].Claim.Features = cluster.Features()
	withSite(&in)
	d := decide(in)
	if d.guard.Datagrams.Sources == nil || d.tunnelSources != "believed nodes" ||
		!slices.Contains(d.guard.Datagrams.Sources, addrs("198.18.9.1")[0]) {
		t.Errorf("datagrams from %v, %s", d.guard.Datagrams.Sources, d.tunnelSources)
	}
}

func TestStatusShowsSites(t *testing.T) {
	in := two(t)
	withSite(&in)
	v := &view{news: news{cfg: in.cfg}, outcome: outcome{lastGood: &in.table}}
	if s := v.status().Sites; len(s) != 1 || s[0].Name != "s" || s[0].Nodes != 1 || !s[0].Open() {
		t.Errorf("sites %+v", s)
	}
}

// An API server with an address of a site is named, because pods do not reach it.
func TestServerInASiteIsNamed(t *testing.T) {
	in := two(t)
	withSite(&in)
	in.table.APIServers = addrs("198.18.9.200")
	if d := decide(in); len(d.notes) != 1 || !strings.Contains(d.notes[0],
		"198.18.9.200, because nodeRanges of a site contain it: correct sites") {
		t.Errorf("notes %q", d.notes)
	}
}
