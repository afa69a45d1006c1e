package lab

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/e2e/lab/addressplan"
	"github.com/kubeveil/kubeveil/pkg/cluster"
)

// SitesOf returns the sites in the configuration of a node of a lab with Options.Sites: one for
// each other node, open, with the node's name.
func (l *Lab) SitesOf(n *Node) (sites []cluster.Site) {
	for i := 1; i <= l.opts.Nodes; i++ {
		if i != n.Number {
			sites = append(sites, l.site(i))
		}
	}
	return sites
}

// site returns the site of which the node with this number is the only node.
func (l *Lab) site(number int) cluster.Site {
	f := l.opts.Family
	s := cluster.Site{Name: fmt.Sprintf("node-%d", number), Reach: cluster.ReachAll,
		PodRanges: f.PodPrefixes(number)}
	for _, a := range addressplan.AddrsOf(f.Underlay(byte(addressplan.NodeHost + number))) {
		s.NodeRanges = append(s.NodeRanges, netip.PrefixFrom(a, a.BitLen()))
	}
	return s
}

// siteSettings returns the settings of veild by which the node is the only node of its cluster.
func (n *Node) siteSettings() map[string]any {
	own := n.lab.site(n.Number)
	return map[string]any{"clusterRanges": own.PodRanges, "nodeRanges": own.NodeRanges,
		"sites": n.lab.SitesOf(n)}
}

// atAPIServer reports whether the node's veild reads the API server.
func (n *Node) atAPIServer() bool {
	return n.lab.Control != nil && (!n.lab.opts.Sites || n.Number == 1)
}

// writeSiteNodes writes the SiteNodes of the first node's cluster to the API server: one for each
// row of another node. Without an API server it does nothing.
func (l *Lab) writeSiteNodes(ctx context.Context, rows []cluster.Node) error {
	if l.Control == nil || !l.opts.Sites {
		return nil
	}
	for _, r := range l.Nodes()[0].seen(rows) {
		if r.Site() == "" {
			continue
		}
		if err := l.Control.objects().PutSiteNode(ctx, r); err != nil {
			return fmt.Errorf("write the SiteNode of %s: %w", r.Name, err)
		}
	}
	return nil
}

// seen returns rows as the node's cluster knows them: with Options.Sites, another node is a node of
// the site that has its name.
func (n *Node) seen(rows []cluster.Node) []cluster.Node {
	if !n.lab.opts.Sites {
		return rows
	}
	rows = slices.Clone(rows)
	for i, r := range rows {
		if r.Name != n.Name && r.Site() == "" {
			rows[i].Name = cluster.SiteNodeName(r.Name, r.Name)
		}
	}
	slices.SortFunc(rows, func(a, b cluster.Node) int { return strings.Compare(a.Name, b.Name) })
	return rows
}
