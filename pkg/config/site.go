package config

import (
	"fmt"
	"regexp"

	"github.com/kubeveil/kubeveil/pkg/cluster"
)

// siteName matches a DNS label (RFC 1123). The names of a site's objects begin with it. Names of
// namespaces are DNS labels, too.
var siteName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

// checkSites checks the sites, except for their ranges by themselves; see checkRanges.
func (p *problems) checkSites(c Config) {
	if len(c.Sites) > MaxSites {
		p.add("sites", "%d sites are given; write at most %d", len(c.Sites), MaxSites)
	}
	if len(c.Sites) > 0 && len(c.NodeRanges) == 0 {
		p.add("sites", "needs nodeRanges, by which addresses of this cluster's nodes and of "+
			"sites' nodes differ; set nodeRanges, or remove sites")
	}

	first, pods := map[string]int{}, c.Families()
	for i, s := range c.Sites {
		key := fmt.Sprintf("sites[%d].", i)
		if !siteName.MatchString(s.Name) || len(s.Name) > 63 {
			p.add(key+"name", "%q is not the name of a site; write at most 63 lower case letters, "+
				"digits and -, such as b", s.Name)
		} else if other, twice := first[s.Name]; twice {
			p.add(key+"name", "sites[%d] has the name %s, too; write another, or one entry with "+
				"the ranges of both", other, s.Name)
		} else {
			first[s.Name] = i
		}

		if s.Reach != "" {
			p.oneOf(key+"reach", s.Reach, cluster.ReachNone, cluster.ReachExports,
				cluster.ReachAll)
		}

		for j, name := range s.Imports {
			if name != cluster.AllNamespaces && (!siteName.MatchString(name) || len(name) > 63) {
				p.add(fmt.Sprintf("%simports[%d]", key, j), "%q is not the name of a namespace; "+
					"write names, or [%q] for all", name, cluster.AllNamespaces)
			}
		}

		for _, list := range []namedRanges{{"podRanges", s.PodRanges},
			{"nodeRanges", s.NodeRanges}} {
			if len(list.ranges) == 0 {
				p.add(key+list.key, "no range is given, so packets to the site could not be "+
					"recognized; write the %s of that cluster", list.key)
			}
		}
		for j, r := range s.PodRanges {
			if r.IsValid() && !(r.Addr().Is4() && pods.V4 || r.Addr().Is6() && pods.V6) {
				p.add(fmt.Sprintf("%spodRanges[%d]", key, j), "%s is of an IP family that "+
					"clusterRanges lack, so no pod here could use it; remove it", r)
			}
		}
	}
}
