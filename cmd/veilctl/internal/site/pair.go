package site

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/remote"
	"github.com/kubeveil/kubeveil/pkg/site/record"
)

// pair returns the entry for the other cluster in the configuration of this one, and the entry for
// this cluster in the configuration of the other. It recognizes them by their ranges. The error
// names everything that must be corrected first.
func pair(here, there *side) (thereAs, hereAs cluster.Site, err error) {
	if err := apart(here, there); err != nil {
		return thereAs, hereAs, err
	}
	thereAs, err1 := entry(here, there, "b")
	hereAs, err2 := entry(there, here, "a")
	return thereAs, hereAs, errors.Join(err1, err2)
}

// apart returns an error if ranges of pods and nodes of the two clusters overlap.
func apart(here, there *side) error {
	for _, s := range []*side{here, there} {
		if len(s.Veild.NodeRanges) == 0 {
			return fmt.Errorf("%s has no nodeRanges in its configuration: set them to the networks "+
				"of its nodes", s.What)
		}
	}
	a, b, overlap := record.Overlapping(rangesOf(here.Veild), rangesOf(there.Veild))
	if overlap {
		return fmt.Errorf("overlap of %s of %s and %s of %s: renumber one of the clusters, or link "+
			"them by proxies", a, here.What, b, there.What)
	}
	return nil
}

// rangesOf returns the ranges of pods and nodes of a cluster. Service ranges may overlap.
func rangesOf(c config.Config) []netip.Prefix { return slices.Concat(c.ClusterRanges, c.NodeRanges) }

// entry returns the site in the configuration of s whose ranges contain the ranges of other. If
// there is none, the error has the text to add, with name as an example.
func entry(s, other *side, name string) (cluster.Site, error) {
	var close []string // why sites with a part of the ranges are not the one
	for _, site := range s.Veild.Sites {
		problem := outside(site, other)
		if problem == "" {
			return site, nil
		}
		if _, _, near := record.Overlapping(slices.Concat(site.PodRanges, site.NodeRanges),
			rangesOf(other.Veild)); near {
			close = append(close, fmt.Sprintf("%s: site %s lacks %s: correct it in the ConfigMap "+
				"kube-system/kubeveil of %s", s.What, site.Name, problem, s.What))
		}
	}
	if len(close) > 0 {
		return cluster.Site{}, errors.New(strings.Join(close, "; "))
	}
	return cluster.Site{}, fmt.Errorf("the configuration of %s has no site for %s: add to sites "+
		"in its ConfigMap kube-system/kubeveil, with a name of your choice,\n"+
		"  - name: %s\n    podRanges: [%s]\n    nodeRanges: [%s]\n"+
		"and restart veild: kubectl -n kube-system rollout restart daemonset/veild",
		s.What, other.What, name, list(other.Veild.ClusterRanges), list(other.Veild.NodeRanges))
}

// outside returns the first range or address of a cluster that is outside of the ranges of a site,
// or "".
func outside(site cluster.Site, of *side) string {
	for _, check := range []struct {
		key            string
		ranges, within []netip.Prefix
	}{
		{"podRanges", of.Veild.ClusterRanges, site.PodRanges},
		{"nodeRanges", of.Veild.NodeRanges, site.NodeRanges},
	} {
		for _, r := range check.ranges {
			if !cluster.Covered(check.within, r) {
				return fmt.Sprintf("%s in %s", r, check.key)
			}
		}
	}

	for _, n := range of.Nodes {
		for _, a := range n.Addrs {
			if !cluster.Covered(site.NodeRanges, netip.PrefixFrom(a, a.BitLen())) {
				return fmt.Sprintf("%s, an address of node %s, in nodeRanges", a,
					remote.Printable(n.Name))
			}
		}
		for _, p := range n.PodPrefixes {
			if !cluster.Covered(site.PodRanges, p) {
				return fmt.Sprintf("%s, the pod prefix of node %s, in podRanges", p,
					remote.Printable(n.Name))
			}
		}
	}
	return ""
}

// list joins ranges as a list of YAML without its brackets. Ranges of IPv6 have quotes.
func list(ranges []netip.Prefix) string {
	texts := make([]string, 0, len(ranges))
	for _, r := range ranges {
		text := r.String()
		if r.Addr().Is6() {
			text = "'" + text + "'"
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, ", ")
}
