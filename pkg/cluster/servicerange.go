package cluster

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// MaxAddedRanges bounds the service ranges that are added at run time.
const MaxAddedRanges = 32

// ServiceRange is a service range that was added to the cluster at run time by a ServiceCIDR
// object.
type ServiceRange struct {
	// Name is the name of the ServiceCIDR.
	Name   string       `json:"name"`
	Prefix netip.Prefix `json:"prefix"`
}

// AddedRanges returns the service ranges that must be closed besides the configured ranges, sorted,
// and sentences about refused ranges. It is pure.
//
// Addresses in an added range become unreachable except as services. So a range is refused if it
// contains addresses that must stay reachable: of cluster and node ranges, of Outside, of sites,
// and of nodes and API servers. This evidence only refuses new ranges. A range of lastGood stays,
// because otherwise an attacker who forges evidence could open it. It is removed when the API
// server does not list it any more. Until the ranges are listed, the ranges of lastGood stay.
func AddedRanges(rules Rules, state State, lastGood *Table) (added []netip.Prefix,
	problems []string) {
	if lastGood == nil {
		lastGood = &Table{}
	}
	if !state.RangesListed {
		return lastGood.ServiceRanges, nil
	}

	listed := slices.Clone(state.ServiceRanges)
	has := func(r ServiceRange) bool { return slices.Contains(lastGood.ServiceRanges, r.Prefix) }
	slices.SortFunc(listed, func(a, b ServiceRange) int {
		switch {
		case has(a) && !has(b):
			return -1
		case has(b) && !has(a):
			return 1
		case a.Name != b.Name:
			return strings.Compare(a.Name, b.Name)
		}
		return a.Prefix.Compare(b.Prefix)
	})

	left := 0
	for _, r := range listed {
		known := slices.ContainsFunc(slices.Concat(rules.ServiceRanges, added),
			func(c netip.Prefix) bool { return covers(c, r.Prefix) })
		why := ""
		if !known {
			why = checkAdded(r.Prefix, rules, state, lastGood)
		}
		if why != "" {
			stays := "is not closed"
			if has(r) {
				stays = "stays closed"
			}
			problems = append(problems, fmt.Sprintf("range %s of ServiceCIDR %s %s: it %s; correct "+
				"the ServiceCIDR", r.Prefix, r.Name, stays, why))
		}
		switch {
		case known || why != "" && !has(r):
		case len(added) == MaxAddedRanges:
			left++
		default:
			added = append(added, r.Prefix)
		}
	}
	if left > 0 {
		problems = append(problems, fmt.Sprintf("%d ranges of ServiceCIDRs are not closed, "+
			"because at most %d are; write larger ranges into serviceRanges", left, MaxAddedRanges))
	}
	slices.SortFunc(added, netip.Prefix.Compare)
	return added, problems
}

// checkAdded returns the reason why p must stay reachable, or "" if there is none.
func checkAdded(p netip.Prefix, rules Rules, state State, lastGood *Table) string {
	for _, list := range []struct {
		what   string
		ranges []netip.Prefix
	}{{"clusterRanges", rules.ClusterRanges}, {"nodeRanges", rules.NodeRanges},
		{"outside", rules.Outside}, {"the addresses of no service", unserved}} {
		if i := slices.IndexFunc(list.ranges, p.Overlaps); i >= 0 {
			return fmt.Sprintf("overlaps %s of %s", list.ranges[i], list.what)
		}
	}

	for _, s := range rules.Sites {
		all := slices.Concat(s.PodRanges, s.NodeRanges)
		if i := slices.IndexFunc(all, p.Overlaps); i >= 0 {
			return fmt.Sprintf("overlaps %s of site %s", all[i], s.Name)
		}
	}

	servers := slices.Concat(state.APIServers, lastGood.APIServers)
	if i := slices.IndexFunc(servers, p.Contains); i >= 0 {
		return fmt.Sprintf("has the address %s of an API server", servers[i])
	}
	if i := slices.IndexFunc(lastGood.NodeAddrs, p.Contains); i >= 0 {
		return fmt.Sprintf("has the address %s of a node", lastGood.NodeAddrs[i])
	}
	for _, n := range state.Nodes {
		if i := slices.IndexFunc(n.Addresses, p.Contains); i >= 0 {
			return fmt.Sprintf("has the address %s of node %s", n.Addresses[i], n.Name)
		}
	}
	return ""
}

// unserved are ranges whose addresses no service can have.
var unserved = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("224.0.0.0/3"),
	netip.MustParsePrefix("::/127"), netip.MustParsePrefix("fe80::/10"),
	netip.MustParsePrefix("ff00::/8"),
}
