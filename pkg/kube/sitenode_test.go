package kube

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/kube/sitenode"
)

// openSite opens site b.
func openSite(c *Client) { c.siteNodes = sitenode.NewStore([]string{"b"}, c.wake) }

func siteNode(name string, i int) m {
	o := veilNode(name, i)
	o["metadata"].(m)["creationTimestamp"] = "2026-01-02T03:04:05Z"
	o["spec"].(m)["addresses"] = []any{"198.19.1.1"}
	return o
}

func TestSiteNodesAreNodesOfTheirSite(t *testing.T) {
	f := newFakeServer(t)
	f.put(nodesPath, node("node-1", 1))
	f.put(siteNodesPath, siteNode("b.node-1", 9))
	f.put(siteNodesPath, siteNode("c.node-1", 8))
	r := start(t, f, "node-1", openSite)
	s := r.until("listed", func(s cluster.State) bool { return s.Synced && !s.SitesUnlisted })
	if len(s.Nodes) != 2 || s.Nodes[0].Name != "b/node-1" || s.Nodes[0].ControlPlane ||
		s.Nodes[0].Claim == nil || len(s.Nodes[0].Addresses) != 1 {
		t.Errorf("nodes %+v", s.Nodes)
	}
	if p := strings.Join(r.Problems(), "\n"); !strings.Contains(p, "SiteNodes: 1 belong to sites") {
		t.Errorf("problems %q", p)
	}

	f.put(siteNodesPath, siteNode("b.node-2", 7))
	r.until("added", func(s cluster.State) bool { return len(s.Nodes) == 3 })
	f.remove(siteNodesPath, "b.node-1")
	f.remove(siteNodesPath, "c.node-1")
	r.until("removed", func(s cluster.State) bool {
		return len(s.Nodes) == 2 && s.Nodes[0].Name == "b/node-2"
	})
	nettest.Until(t, 10*time.Second, "no problem", func() bool { return len(r.Problems()) == 0 })
}

// A cluster without the kind loses the site and nothing else. Without an open site, veild does not
// send the request.
func TestMissingSiteNodesCostTheSiteOnly(t *testing.T) {
	f := newFakeServer(t)
	f.setRefuse("GET "+siteNodesPath, http.StatusNotFound)
	f.put(nodesPath, node("node-1", 1))
	r := start(t, f, "node-1", openSite)
	s := r.until("synced", func(s cluster.State) bool { return s.Synced })
	if !s.SitesUnlisted || len(s.Nodes) != 1 {
		t.Errorf("unlisted %t, nodes %+v", s.SitesUnlisted, s.Nodes)
	}
	nettest.Until(t, 10*time.Second, "a problem", func() bool {
		return strings.Contains(strings.Join(r.Problems(), "\n"),
			"sitenodes.kubeveil.io is not installed: apply manifests/crd")
	})

	before := f.count("GET " + siteNodesPath)
	f.setRefuse("GET "+siteNodesPath, 0)
	r.until("listed", func(s cluster.State) bool { return s.Synced && !s.SitesUnlisted })
	if f.count("GET "+siteNodesPath) == before {
		t.Error("the kind was not requested again")
	}

	g := newFakeServer(t)
	g.put(nodesPath, node("node-1", 1))
	start(t, g, "node-1").until("synced", func(s cluster.State) bool {
		return s.Synced && !s.SitesUnlisted
	})
	if n := g.count("GET " + siteNodesPath); n > 0 {
		t.Errorf("%d requests without an open site", n)
	}
}

// The loss of most Nodes is noticed beside a large site, whose nodes do not count.
func TestLossOfNodesIsNoticedBesideALargeSite(t *testing.T) {
	f := newFakeServer(t)
	f.put(nodesPath, node("node-1", 1))
	last := cluster.Table{Peers: []cluster.Node{{Name: "node-2"}, {Name: "node-3"}}}
	for i, name := range []string{"b.a", "b.b", "b.c", "b.d", "b.e", "b.f", "b.g"} {
		f.put(siteNodesPath, siteNode(name, 20+i))
		last.Peers = append(last.Peers, cluster.Node{Name: strings.Replace(name, ".", "/", 1)})
	}
	r := start(t, f, "node-1", openSite, func(c *Client) {
		c.times.confirm = time.Hour
		c.Recall(last)
	})
	r.until("with the missing nodes", func(s cluster.State) bool {
		return s.Synced && !s.SitesUnlisted && len(s.Nodes) == 10
	})
	nettest.Until(t, 10*time.Second, "the loss is noticed", func() bool {
		return strings.Contains(strings.Join(r.Problems(), "\n"), "suddenly lists 1 Nodes, 2 fewer")
	})
}
