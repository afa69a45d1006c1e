package cluster

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Site is another cluster, as the configuration describes it.
type Site struct {
	// Name is a DNS label (RFC 1123).
	Name string `json:"name"`
	// PodRanges contain every pod prefix that the site may ever have, and NodeRanges every address
	// of its nodes. They are never inferred from what the site states.
	PodRanges  []netip.Prefix `json:"podRanges"`
	NodeRanges []netip.Prefix `json:"nodeRanges"`
	// Reach is ReachNone, ReachExports, ReachAll, or empty, which means ReachExports.
	Reach string `json:"reach,omitempty"`
	// Imports are the namespaces into which services of the site are imported; AllNamespaces means
	// each namespace. Nil means none.
	Imports []string `json:"imports,omitempty"`
}

// AllNamespaces is the entry of Site.Imports that stands for each namespace.
const AllNamespaces = "*"

// SitesAnnotation is the annotation of a ServiceExport that names the sites that may reach the
// service, separated by commas. Without it, all sites may.
const SitesAnnotation = "kubeveil.io/sites"

// ExportedTo reports whether a ServiceExport with these annotations is for the site.
func ExportedTo(annotations map[string]string, site string) bool {
	names, limited := annotations[SitesAnnotation]
	if !limited {
		return true
	}
	for name := range strings.SplitSeq(names, ",") {
		if strings.TrimSpace(name) == site {
			return true
		}
	}
	return false
}

// ImportsInto reports whether services of the site are imported into a namespace.
func (s Site) ImportsInto(namespace string) bool {
	return slices.Contains(s.Imports, AllNamespaces) || slices.Contains(s.Imports, namespace)
}

// MaxSites bounds the sites of a cluster.
const MaxSites = 8

// Values of Site.Reach.
const (
	// ReachNone closes the site: none of its nodes is a peer.
	ReachNone = "none"
	// ReachExports makes its nodes peers. New connections from the site reach only exported
	// endpoints of this cluster.
	ReachExports = "exports"
	// ReachAll makes its nodes peers. They reach all pods and nodes of this cluster, as its own
	// nodes do.
	ReachAll = "all"
)

// Open reports whether nodes of the site may be peers.
func (s Site) Open() bool { return s.ExportsOnly() || s.Reach == ReachAll }

// ExportsOnly reports whether new connections from the site reach only exported endpoints.
func (s Site) ExportsOnly() bool { return s.Reach == "" || s.Reach == ReachExports }

// Equal reports whether s and o are the same, with their lists in the same order.
func (s Site) Equal(o Site) bool {
	return s.Name == o.Name && s.Reach == o.Reach && slices.Equal(s.PodRanges, o.PodRanges) &&
		slices.Equal(s.NodeRanges, o.NodeRanges) && slices.Equal(s.Imports, o.Imports)
}

// Opening is an exported endpoint of this node, to which a site may open connections.
type Opening struct {
	// Site is the name of the importing site.
	Site string
	// Protocol is the number of TCP, UDP or SCTP in an IP header.
	Protocol uint8
	Endpoint netip.AddrPort
}

// Compare orders openings by endpoint, protocol and site.
func (o Opening) Compare(p Opening) int {
	return cmp.Or(o.Endpoint.Compare(p.Endpoint), cmp.Compare(o.Protocol, p.Protocol),
		cmp.Compare(o.Site, p.Site))
}

// siteSeparator separates the names of a site and of a node in the site. No name of a Kubernetes
// object contains it. So a node of a site and a node of this cluster never have the same name.
const siteSeparator = "/"

// SiteNodeName returns the name in a State or Table of a node of a site.
func SiteNodeName(site, node string) string { return site + siteSeparator + node }

// SiteOf returns the name of the site to which the node called name belongs, or "" for a node of
// this cluster.
func SiteOf(name string) string {
	site, _, found := strings.Cut(name, siteSeparator)
	if !found {
		return ""
	}
	return site
}

// Site returns SiteOf of the node's name.
func (n Node) Site() string { return SiteOf(n.Name) }

// Local returns the nodes of this cluster among nodes. It returns nodes itself if there are no
// others.
func Local(nodes []Node) []Node {
	foreign := func(n Node) bool { return n.Site() != "" }
	if !slices.ContainsFunc(nodes, foreign) {
		return nodes
	}
	return slices.DeleteFunc(slices.Clone(nodes), foreign)
}

// of returns the rules for the prefixes and addresses of n: the rules for a node of a site have the
// ranges of the site. problem is a sentence if n belongs to a site that is not open.
func (r Rules) of(n Node) (rules Rules, problem string) {
	name := n.Site()
	if name == "" {
		return r, ""
	}
	i := slices.IndexFunc(r.Sites, func(s Site) bool { return s.Name == name })
	// Empty NodeRanges would allow any address.
	if i < 0 || !r.Sites[i].Open() || len(r.Sites[i].NodeRanges) == 0 {
		return Rules{}, fmt.Sprintf("its site %s is not open in the configuration; write it into "+
			"sites with reach: exports on every node, or delete the SiteNode", name)
	}
	r.ClusterRanges, r.NodeRanges, r.Outside = r.Sites[i].PodRanges, r.Sites[i].NodeRanges, nil
	r.site = name
	return r, ""
}

// rivals returns the conflicts of n that decide about its order. A node of this cluster comes
// before all nodes of sites, so its conflicts with them do not count.
func rivals(n Node, conflicts []conflict) []conflict {
	if n.Site() != "" {
		return conflicts
	}
	return slices.DeleteFunc(conflicts, func(c conflict) bool { return SiteOf(c.holder) != "" })
}

// compareSites orders nodes of this cluster before nodes of sites.
func compareSites(a, b *candidate) int {
	switch foreignA, foreignB := a.Site() != "", b.Site() != ""; {
	case foreignB && !foreignA:
		return -1
	case foreignA && !foreignB:
		return 1
	}
	return 0
}

// ofSite reports whether a may be an address of an open site's node.
func (r *resolution) ofSite(a netip.Addr) bool {
	return slices.ContainsFunc(r.rules.Sites, func(s Site) bool {
		return s.Open() && InRanges(s.NodeRanges, a)
	})
}
