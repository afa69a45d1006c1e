package cluster_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/kubeveil/kubeveil/pkg/cluster"
)

// sites are an open site b and a closed site c.
func sites() []cluster.Site {
	return []cluster.Site{
		{Name: "b", Reach: cluster.ReachAll, PodRanges: prefixes("10.245.0.0/16"),
			NodeRanges: prefixes("198.18.1.0/24")},
		{Name: "c", Reach: cluster.ReachNone, PodRanges: prefixes("10.246.0.0/16"),
			NodeRanges: prefixes("198.18.2.0/24")},
	}
}

func siteRules() cluster.Rules {
	r := rules()
	r.NodeRanges, r.Sites = prefixes("198.18.0.0/24", "fd42::/64"), sites()
	return r
}

// siteNode is node n of site b, with the address 198.18.1.(10+n), the prefix 10.245.n.0/24 and the
// key 20+n.
func siteNode(n int) cluster.Node {
	a := netip.AddrFrom4([4]byte{198, 18, 1, byte(10 + n)})
	p := prefixes(fmt.Sprintf("10.245.%d.0/24", n))
	return cluster.Node{Name: cluster.SiteNodeName("b", fmt.Sprintf("node-%d", n)),
		Created: epoch, Addresses: []netip.Addr{a}, PodPrefixes: p,
		Claim: &cluster.Claim{Keys: []cluster.Key{{Epoch: 1, Public: key(20 + n)}}, PodPrefixes: p,
			Endpoints: []netip.AddrPort{netip.AddrPortFrom(a, 51820)}}}
}

// located returns n with this address and prefix in place of its own.
func located(n cluster.Node, addr, prefix string) cluster.Node {
	n.Addresses, n.PodPrefixes = addrs(addr), prefixes(prefix)
	n.Claim = &cluster.Claim{Keys: n.Claim.Keys, PodPrefixes: n.PodPrefixes,
		Endpoints: []netip.AddrPort{netip.AddrPortFrom(n.Addresses[0], 51820)}}
	return n
}

func TestSiteOf(t *testing.T) {
	for name, want := range map[string]string{"b/node-1": "b", "node-1": "", "b.node-1": "", "": ""} {
		if got := cluster.SiteOf(name); got != want {
			t.Errorf("%q: site %q, want %q", name, got, want)
		}
	}
}

// A node of a site gets only prefixes and addresses of its site, and no key of this cluster.
func TestSiteNodesAreBelievedInsideTheirSite(t *testing.T) {
	const local = "10.244.7.0/24"
	for name, c := range map[string]struct {
		last, nodes []cluster.Node
		peers       string
		keyless     string
		reason      string // of a refusal; "" if all is believed
	}{
		"honest": {nodes: []cluster.Node{node(1), siteNode(1), siteNode(2)},
			peers: "b/node-1 b/node-2 node-1"},
		"a name as in this cluster": {nodes: []cluster.Node{node(1), siteNode(1)},
			peers: "b/node-1 node-1"},
		"a prefix of this cluster": {nodes: []cluster.Node{located(siteNode(1), "198.18.1.11", local)},
			reason: "prefix 10.244.7.0/24, which is outside of podRanges of its site"},
		"a prefix of another site": {nodes: []cluster.Node{located(siteNode(1), "198.18.1.11",
			"10.246.1.0/24")}, reason: "outside of podRanges of its site"},
		"an address of this cluster": {nodes: []cluster.Node{located(siteNode(1), "198.18.0.44",
			"10.245.1.0/24")}, keyless: "b/node-1",
			reason: "node address 198.18.0.44, which lies outside of nodeRanges of its site"},
		"an address of another site": {nodes: []cluster.Node{located(siteNode(1), "198.18.2.11",
			"10.245.1.0/24")}, keyless: "b/node-1", reason: "outside of nodeRanges of its site"},
		"a closed site": {nodes: []cluster.Node{with(located(siteNode(1), "198.18.2.11",
			"10.246.1.0/24"), func(n *cluster.Node) { n.Name = "c/node-1" })},
			reason: "its site c is not open in the configuration"},
		"an unknown site": {nodes: []cluster.Node{with(siteNode(1),
			func(n *cluster.Node) { n.Name = "d/node-1" })}, reason: "its site d is not open"},
		"our key, older than ours": {nodes: []cluster.Node{node(1), with(siteNode(1),
			func(n *cluster.Node) { n.Claim.Keys[0].Public = key(1) })}, peers: "node-1",
			keyless: "b/node-1", reason: "held by node-1, which is a node of this cluster"},
		"our new key, which it had first": {
			last: []cluster.Node{keyless(node(1)), with(siteNode(1),
				func(n *cluster.Node) { n.Claim.Keys[0].Public = key(1) })},
			nodes: []cluster.Node{node(1), with(siteNode(1),
				func(n *cluster.Node) { n.Claim.Keys[0].Public = key(1) })}, peers: "node-1",
			keyless: "b/node-1", reason: "is a node of this cluster"},
		"a prefix of another node of its site": {nodes: []cluster.Node{siteNode(1),
			located(siteNode(2), "198.18.1.12", "10.245.1.128/25")}, peers: "b/node-1",
			reason: "held by b/node-1"},
		"the gateway": {nodes: []cluster.Node{with(located(siteNode(1), "198.18.1.1",
			"10.245.1.0/24"), func(n *cluster.Node) { n.ControlPlane = true })},
			keyless: "b/node-1", reason: "the address of a gateway of this cluster"},
	} {
		t.Run(name, func(t *testing.T) {
			r := siteRules()
			r.Gateways = append(r.Gateways, netip.MustParseAddr("198.18.1.1"))

			var last *cluster.Table
			if c.last != nil {
				before, _ := cluster.Resolve(r, synced(append(c.last, self())...), nil)
				last = &before
			}
			got, refusals := cluster.Resolve(r, synced(append(c.nodes, self())...), last)
			if names(got.Peers) != c.peers || names(got.Keyless) != c.keyless {
				t.Errorf("peers %q, keyless %q", names(got.Peers), names(got.Keyless))
			}
			text := fmt.Sprint(refusals)
			if c.reason == "" && len(refusals) > 0 || !strings.Contains(text, c.reason) {
				t.Errorf("refusals %s, want %q", text, c.reason)
			}
		})
	}
}

// Until SiteNodes have been listed, nodes of sites stay. A site that is not open any more loses
// them at once.
func TestSiteNodesStayUntilTheyAreListed(t *testing.T) {
	r := siteRules()
	last, _ := cluster.Resolve(r, synced(self(), node(1), siteNode(1)), nil)
	s := synced(self(), node(1))
	for _, c := range []struct {
		synced, unlisted, open bool
		peers                  string
	}{{true, true, true, "b/node-1 node-1"}, {false, false, true, "b/node-1 node-1"},
		{true, false, true, "node-1"}, {true, true, false, "node-1"},
		{false, true, false, "node-1"}} {
		s.Synced, s.SitesUnlisted = c.synced, c.unlisted
		if r.Sites = sites(); !c.open {
			r.Sites[0].Reach = cluster.ReachNone
		}
		got, _ := cluster.Resolve(r, s, &last)
		if names(got.Peers) != c.peers {
			t.Errorf("%+v: peers %s", c, names(got.Peers))
		}
		site := netip.MustParseAddr("198.18.1.11")
		if kept := slices.Contains(got.NodeAddrs, site); kept != strings.Contains(c.peers, "b/") {
			t.Errorf("%+v: the site's address is closed: %t", c, kept)
		}
	}
}

// genSiteNode draws a node of a site, whose claims often conflict with others.
func genSiteNode(t *rapid.T) cluster.Node {
	name := rapid.SampledFrom([]string{"b/node-1", "b/node-2", "b/self", "c/node-1"}).Draw(t, "site")
	n := genNode(name).Draw(t, "site node")
	if rapid.IntRange(0, 3).Draw(t, "forges") > 0 {
		n.Addresses = rapid.SliceOfN(rapid.SampledFrom(addrs("198.18.1.11", "198.18.1.12",
			"198.18.2.11")), 1, 2).Draw(t, "addresses of the site")
		n.PodPrefixes = rapid.SliceOfN(rapid.SampledFrom(prefixes("10.245.1.0/24", "10.245.0.0/23",
			"10.246.1.0/24")), 0, 2).Draw(t, "prefixes of the site")
	}
	if n.Claim != nil {
		n.Claim.PodPrefixes = slices.Clone(n.PodPrefixes)
		n.Claim.Endpoints = nil
		for _, a := range n.Addresses[:min(1, len(n.Addresses))] {
			n.Claim.Endpoints = []netip.AddrPort{netip.AddrPortFrom(a, 51820)}
		}
	}
	return n
}

// ofCluster returns t without nodes of sites and their addresses.
func ofCluster(t cluster.Table) cluster.Table {
	t.Peers, t.Keyless = cluster.Local(t.Peers), cluster.Local(t.Keyless)
	t.NodeAddrs = slices.DeleteFunc(slices.Clone(t.NodeAddrs), func(a netip.Addr) bool {
		return slices.ContainsFunc(sites(), func(s cluster.Site) bool {
			return s.NodeRanges[0].Contains(a)
		})
	})
	return t
}

// The decisions about nodes of this cluster are the same with and without nodes of sites. A node of
// a site is inside the ranges of an open site, and never a control plane.
func TestSitesDoNotChangeLocalDecisions(t *testing.T) {
	r := siteRules()
	draw := func(t *rapid.T, label string) (all, local cluster.State) {
		all = genState(t, label)
		local = all
		local.Nodes = slices.Clone(all.Nodes)
		for range rapid.IntRange(0, 3).Draw(t, label+" sites") {
			n := genSiteNode(t)
			n.Created = n.Created.Add(-time.Duration(rapid.IntRange(0, 4).Draw(t, "older")) * time.Hour)
			all.Nodes = append(all.Nodes, n)
		}
		return all, local
	}
	rapid.Check(t, func(t *rapid.T) {
		first, _ := draw(t, "last")
		last, _ := cluster.Resolve(r, first, nil)
		localLast := ofCluster(last)
		all, local := draw(t, "state")
		all.SitesUnlisted = rapid.Bool().Draw(t, "unlisted")

		want, wantRefusals := cluster.Resolve(r, local, &localLast)
		got, refusals := cluster.Resolve(r, all, &last)
		if d := gocmp.Diff(want, ofCluster(got), compareNetip, cmpopts.EquateEmpty()); d != "" {
			t.Fatal(d)
		}
		refusals = slices.DeleteFunc(refusals,
			func(f cluster.Refusal) bool { return cluster.SiteOf(f.Node) != "" })
		if d := gocmp.Diff(wantRefusals, refusals, cmpopts.EquateEmpty()); d != "" {
			t.Fatal(d)
		}

		for _, n := range slices.Concat(got.Peers, got.Keyless) {
			if n.Site() == "" {
				continue
			}
			outside := func(a netip.Addr) bool { return !r.Sites[0].NodeRanges[0].Contains(a) }
			if n.Site() != "b" || n.ControlPlane || slices.ContainsFunc(n.Addresses, outside) ||
				slices.ContainsFunc(n.PodPrefixes, func(p netip.Prefix) bool {
					return !r.Sites[0].PodRanges[0].Contains(p.Addr())
				}) {
				t.Fatalf("%+v", n)
			}
		}
	})
}

// Without the annotation an export is for all sites. With it, only for those that it names.
func TestExportNamesItsSites(t *testing.T) {
	for name, tt := range map[string]struct {
		annotations map[string]string
		b, c        bool
	}{
		"no annotation": {nil, true, true},
		"one":           {map[string]string{cluster.SitesAnnotation: "b"}, true, false},
		"two":           {map[string]string{cluster.SitesAnnotation: " c , b"}, true, true},
		"empty":         {map[string]string{cluster.SitesAnnotation: ""}, false, false},
		"other":         {map[string]string{cluster.SitesAnnotation: "bc"}, false, false},
	} {
		b, c := cluster.ExportedTo(tt.annotations, "b"), cluster.ExportedTo(tt.annotations, "c")
		if b != tt.b || c != tt.c {
			t.Errorf("%s: b %v, c %v", name, b, c)
		}
	}
}
