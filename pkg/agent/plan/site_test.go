package plan_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/agent/plan"
	"github.com/kubeveil/kubeveil/pkg/agent/plan/plantest"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/config"
)

// The ranges of a site are closed with and without a table, and its nodes are peers.
func TestDecideWithASite(t *testing.T) {
	in := plantest.Two(t)
	plantest.WithSite(&in)
	d := plan.Decide(in)
	if len(d.Problems)+len(d.Notes) > 0 {
		t.Fatalf("problems %q, notes %q", d.Problems, d.Notes)
	}
	if n := len(d.Host.Peers); n != 2 || d.Host.Peers[1].Name != "s/b" ||
		len(d.Host.Peers[1].Devices) != 1 || len(d.Tunnel.Devices[0].Peers) != 2 {
		t.Errorf("routes to %+v", d.Host.Peers)
	}

	in.Table, in.Complete = cluster.Table{}, false
	for _, d := range []plan.Decision{d, plan.Decide(in)} {
		pods := in.Config.Sites[0].PodRanges[0]
		if !slices.Contains(d.Guard.Ranges, pods) || !slices.Contains(d.Host.ClusterRanges, pods) ||
			!slices.Contains(d.Host.ClosedRanges, in.Config.Sites[0].NodeRanges[1]) ||
			slices.Contains(d.Guard.Ranges, in.Config.Sites[0].NodeRanges[0]) {
			t.Errorf("not closed: guard %v, routes %v and %v", d.Guard.Ranges, d.Host.ClusterRanges,
				d.Host.ClosedRanges)
		}
	}
}

// A node of a site with an older version does not make this node accept datagrams from anywhere.
func TestSitesDoNotOpenTheTunnelPort(t *testing.T) {
	in := plantest.Two(t)
	in.Config.Source.Kind = config.SourceKubernetes
	in.Table.Peers[0].Claim.Features = cluster.Features()
	plantest.WithSite(&in)
	d := plan.Decide(in)
	if d.Guard.Datagrams.Sources == nil || d.TunnelSources != "believed nodes" ||
		!slices.Contains(d.Guard.Datagrams.Sources, addrs("198.18.9.1")[0]) {
		t.Errorf("datagrams from %v, %s", d.Guard.Datagrams.Sources, d.TunnelSources)
	}
}

// An API server with an address of a site is named, because pods do not reach it.
func TestServerInASiteIsNamed(t *testing.T) {
	in := plantest.Two(t)
	plantest.WithSite(&in)
	in.Table.APIServers = addrs("198.18.9.200")
	if d := plan.Decide(in); len(d.Notes) != 1 || !strings.Contains(d.Notes[0],
		"198.18.9.200, because nodeRanges of a site contain it: correct sites") {
		t.Errorf("notes %q", d.Notes)
	}
}
