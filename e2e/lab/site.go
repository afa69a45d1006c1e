package lab

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/lab/addressplan"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/site/mirror"
	"github.com/kubeveil/kubeveil/pkg/site/record"
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
	own, sites := n.lab.site(n.Number), n.lab.SitesOf(n)
	if n.lab.opts.ExportsOnly && n.atAPIServer() {
		for i := range sites {
			sites[i].Reach = ""
		}
	}
	return map[string]any{"clusterRanges": own.PodRanges, "nodeRanges": own.NodeRanges,
		"sites": sites}
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

// PutImport writes what veil-site writes for the import k at the API server of the first node's
// cluster: the derived Service and its EndpointSlices. Both may exist. It returns the Service, or an
// error if something of the sites in in is refused.
func (l *Lab) PutImport(ctx context.Context, in mirror.Input,
	k record.Key) (*corev1.Service, error) {
	out := mirror.Plan(in)
	m := out.Imports[k]
	for name, r := range out.Reports {
		if m == nil || r.Refused > 0 {
			return nil, fmt.Errorf("site %s: the import %s is refused: %+v", name, k, r)
		}
	}
	services := l.Control.Client.CoreV1().Services(k.Namespace)
	s, err := services.Create(ctx, m.Derived(k), metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		s, err = services.Get(ctx, mirror.DerivedName(k.Name), metav1.GetOptions{})
	}
	if err != nil {
		return nil, fmt.Errorf("import %s: %w", k, err)
	}

	parts := l.Control.Client.DiscoveryV1().EndpointSlices(k.Namespace)
	for _, slice := range m.EndpointSlices(k) {
		_, err := parts.Create(ctx, slice, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			_, err = parts.Update(ctx, slice, metav1.UpdateOptions{})
		}
		if err != nil {
			return nil, fmt.Errorf("import %s: %w", k, err)
		}
	}
	return s, nil
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
