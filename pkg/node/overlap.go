package node

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/hostnet/underlay"
)

// overlapsShown bounds how many links a sentence names.
const overlapsShown = 5

// Overlaps returns a sentence that names the links of other programs with a network inside a
// cluster range, a service range or a site's pod range, for example a bridge of Docker. Processes
// of this node reach such a link instead of the pods or services. It returns "" if there are none.
// A single address in a service range does not count, because NodeLocal DNSCache and IPVS assign
// such addresses.
func Overlaps(cfg config.Config, networks []underlay.Network) string {
	var found []string
	for _, n := range networks {
		switch {
		case within(n.Network, cfg.ClusterRanges):
			found = append(found, fmt.Sprintf("%s (%s, in clusterRanges)", n.Link, n.Network))
		case !n.Network.IsSingleIP() && within(n.Network, cfg.ServiceRanges):
			found = append(found, fmt.Sprintf("%s (%s, in serviceRanges)", n.Link, n.Network))
		case within(n.Network, cfg.PodRanges()):
			found = append(found, fmt.Sprintf("%s (%s, in podRanges of a site)", n.Link, n.Network))
		}
	}
	if len(found) == 0 {
		return ""
	}

	slices.Sort(found)
	if more := len(found) - overlapsShown; more > 0 {
		found = append(found[:overlapsShown], fmt.Sprintf("and %d more", more))
	}
	return fmt.Sprintf("links of other programs have networks of the cluster, so processes of "+
		"this node do not reach pods or services with those addresses: %s; give these links "+
		"other networks, or delete them", strings.Join(found, ", "))
}

// within reports whether p lies in one of the ranges.
func within(p netip.Prefix, ranges []netip.Prefix) bool {
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool {
		return r.Bits() <= p.Bits() && r.Overlaps(p)
	})
}
