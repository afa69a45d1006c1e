package cluster

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// Bounds on the claims of one node. They are far above the needs of real nodes, and keep one forged
// object from filling every node's tables and logs.
const (
	maxAddresses = 64
	maxPrefixes  = 16
	maxKeys      = 16
)

// check checks the name and the pod prefixes of c's Node object, without regard to other nodes. It
// adds sentences to c.problems, and keeps only valid prefixes.
func (r *resolution) check(c *candidate) {
	if c.Name == "" {
		c.problems = append(c.problems, "a node has no name; delete it")
	}
	claimed := c.PodPrefixes
	c.PodPrefixes = nil
	c.ControlPlane = c.ControlPlane && c.Site() == ""
	rules, problem := r.rules.of(c.Node)
	if problem != "" {
		c.problems = append(c.problems, problem)
		return
	}
	if len(claimed) > maxPrefixes {
		c.problems = append(c.problems, fmt.Sprintf("it has %d pod prefixes, more than %d; remove "+
			"some from Node.spec.podCIDRs", len(claimed), maxPrefixes))
		claimed = nil
	}
	for _, p := range claimed {
		if why := checkPrefix(p, c.PodPrefixes, rules); why != "" {
			c.problems = append(c.problems, fmt.Sprintf("it has the pod prefix %s, %s", p, why))
			continue
		}
		c.PodPrefixes = append(c.PodPrefixes, p)
	}
}

// checkAddrs keeps the addresses that may belong to c, without regard to other nodes, and refuses
// the others.
//
// Table.NodeAddrs makes addresses unreachable for pods, so a forged address must not get there. A
// kubelet can write any address into its own Node. The cases are:
//   - Loopback, multicast, unspecified, broadcast and link-local addresses are ignored, because no
//     node has them.
//   - An address in the cluster or service ranges is ignored, because the ranges are closed
//     already. A host route is more specific than a pod prefix, so with it a forger could
//     black-hole or capture one pod or service.
//   - An address outside of NodeRanges is ignored. It may be any address of the Internet, for
//     example of a resolver.
//   - The address of a gateway or of an API server is refused on a node without the control-plane
//     label. Otherwise pods would lose that service, or reach the forger instead. The underlay
//     supplies this evidence (DHCP, DNS) and can be forged, so it only refuses newcomers. A node
//     keeps an address that it had in lastGood. Otherwise an attacker who forges evidence could
//     make packets to that node leave in clear. A refused address is closed if it is inside
//     NodeRanges, where it probably belongs to a node, or if it was closed in lastGood. Otherwise
//     it is ignored.
//   - For an address of another node see acceptAddrs.
//
// No known node holds the remaining addresses. They are unreachable for pods even if the node is
// refused for another reason. That is better than packets in clear to an address that probably
// belongs to a node.
func (r *resolution) checkAddrs(c *candidate) {
	last := r.last[c.Name]
	had := func(a netip.Addr) bool {
		return c.accepted && (slices.Contains(last.Addresses, a) ||
			slices.Contains(last.Contested, a))
	}
	listed := c.Addresses
	if len(c.Contested) > 0 {
		listed = canonicalAddrs(slices.Concat(c.Addresses, c.Contested))
		c.yields = map[netip.Addr]bool{}
		for _, a := range c.Contested {
			c.yields[a] = !slices.Contains(c.Addresses, a)
		}
	}
	c.Addresses, c.Contested = nil, nil
	rules, problem := r.rules.of(c.Node)
	if problem != "" {
		return // check has reported it.
	}

	say := func(format string, args ...any) {
		r.refusals = append(r.refusals, Refusal{Node: c.Name, Reason: fmt.Sprintf(format, args...)})
	}
	if len(listed) > maxAddresses {
		say("it claims %d addresses, more than %d, and keeps those that it had: remove some from "+
			"the Node's status", len(listed), maxAddresses)
		listed = slices.DeleteFunc(slices.Clone(listed), func(a netip.Addr) bool { return !had(a) })
	}
	for _, a := range listed {
		if why := checkAddr(a, rules); why != "" {
			say("it claims the node address %s, %s", a, why)
			continue
		}
		why := ""
		if !c.ControlPlane && !had(a) {
			why = checkEvidence(a, rules, r.apiServers)
		}
		if why == "" {
			c.Addresses = append(c.Addresses, a)
			continue
		}
		say("it claims the node address %s, %s", a, why)
		if InRanges(rules.NodeRanges, a) || has(r.lastAddrs, a) {
			c.closed = append(c.closed, a)
		}
	}
}

// checkAddr returns the reason why a cannot be a node's address, or "" if it can.
func checkAddr(a netip.Addr, rules Rules) string {
	const fix = "; correct the node's addresses (kubelet --node-ip) or delete the Node"
	broadcast := netip.AddrFrom4([4]byte{255, 255, 255, 255})
	switch {
	case !a.IsValid() || a.Zone() != "" || a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() ||
		a.IsLinkLocalUnicast() || a == broadcast:
		return "which cannot be reached from other nodes (loopback, link-local, multicast, " +
			"broadcast or unspecified)" + fix
	case InRanges(rules.ServiceRanges, a):
		return "which lies in a service range" + fix
	case InRanges(rules.ClusterRanges, a):
		return "which lies in a cluster range" + fix
	case rules.site != "" && !InRanges(rules.NodeRanges, a):
		return "which lies outside of nodeRanges of its site; extend them on every node if the " +
			"site has such addresses, or delete the SiteNode"
	case len(rules.NodeRanges) > 0 && !InRanges(rules.NodeRanges, a):
		return "which lies outside of nodeRanges; extend nodeRanges if nodes have such " +
			"addresses, or delete the Node"
	}
	return ""
}

// checkEvidence returns the reason why a cannot be the address of a worker node, or "" if there is
// none. The underlay shows this: a is the address of a gateway or of an API server.
func checkEvidence(a netip.Addr, rules Rules, apiServers []netip.Addr) string {
	fix := ", but is not a control-plane node; if it is one, give it the label " +
		"node-role.kubernetes.io/control-plane, otherwise delete the Node"
	if rules.site != "" {
		fix = " of this cluster; correct the SiteNode, or delete it"
	}
	switch {
	case containsAddr(rules.Gateways, a):
		return "which is the address of a gateway" + fix
	case slices.Contains(apiServers, a):
		return "which is the address of an API server" + fix
	}
	return ""
}

// checkPrefix returns the reason why p cannot be a pod prefix of a node, or "" if it can. own are
// the accepted prefixes of the same node.
func checkPrefix(p netip.Prefix, own []netip.Prefix, rules Rules) string {
	switch {
	case !p.IsValid():
		return "which is malformed; correct Node.spec.podCIDRs"
	case !Covered(rules.ClusterRanges, p) && rules.site != "":
		return "which is outside of podRanges of its site; extend them on every node if the " +
			"prefix is right, or delete the SiteNode"
	case !Covered(rules.ClusterRanges, p):
		return "which is outside of every cluster range; extend clusterRanges on every " +
			"node if the prefix is right, otherwise delete the Node and let it join again"
	case slices.ContainsFunc(rules.ServiceRanges, p.Overlaps):
		return "which overlaps a service range; give the node another prefix"
	case slices.ContainsFunc(own, p.Overlaps):
		return "which overlaps another prefix of the same Node; correct Node.spec.podCIDRs"
	}
	return ""
}

// checkClaim returns the problems of the claim (VeilNode) of an accepted node.
func checkClaim(n Node) (problems []string) {
	say := func(format string, args ...any) {
		problems = append(problems, fmt.Sprintf("its VeilNode is not believed: "+format, args...))
	}
	c := n.Claim
	if !slices.Equal(c.PodPrefixes, n.PodPrefixes) {
		say("it claims the pod prefixes %v, but Node.spec.podCIDRs says %v; restart veild on the "+
			"node to publish again", c.PodPrefixes, n.PodPrefixes)
	}

	switch {
	case len(c.Keys) == 0:
		say("it has no key; restart veild on the node")
	case len(c.Keys) > maxKeys:
		say("it has %d keys, more than %d; delete it, veild publishes it again", len(c.Keys),
			maxKeys)
	default:
		problems = append(problems, checkKeys(c.Keys)...)
	}

	if len(c.Endpoints) == 0 {
		say("it has no endpoint; restart veild on the node")
	}
	if len(c.Endpoints) > 2 || len(c.Endpoints) == 2 &&
		c.Endpoints[0].Addr().Is4() == c.Endpoints[1].Addr().Is4() {
		say("it has more than one endpoint of a family: %v; restart veild on the node",
			c.Endpoints[:min(len(c.Endpoints), 4)])
	}

	for _, e := range c.Endpoints[:min(len(c.Endpoints), 2)] {
		// The endpoint may be a contested address, because outer packets are authenticated by the
		// key.
		if e.Port() == 0 || !slices.Contains(n.Addresses, e.Addr()) &&
			!slices.Contains(n.Contested, e.Addr()) {
			say("its endpoint %s is not an address of the node with a port; the node has %v", e,
				slices.Concat(n.Addresses, n.Contested))
		}
	}

	if c.MTU < 0 || c.MTU > MaxMTU {
		say("its underlay MTU is %d, which is not between 0 and %d", c.MTU, MaxMTU)
	}
	return problems
}

// checkKeys returns the problems of the sorted keys of one claim.
func checkKeys(keys []Key) (problems []string) {
	seen := map[wgkey.Public]bool{}
	for i, k := range keys {
		switch {
		case k.Public == wgkey.Public{}:
			problems = append(problems, fmt.Sprintf("its VeilNode is not believed: the key of "+
				"epoch %d is zero; restart veild on the node", k.Epoch))
		case seen[k.Public]:
			problems = append(problems, fmt.Sprintf("its VeilNode is not believed: it has the key "+
				"%s twice; restart veild on the node", k.Public))
		case i > 0 && keys[i-1].Epoch == k.Epoch:
			problems = append(problems, fmt.Sprintf("its VeilNode is not believed: it has two "+
				"keys of epoch %d; restart veild on the node", k.Epoch))
		}
		seen[k.Public] = true
	}
	return problems
}

// covers reports whether every address of inner is in outer.
func covers(outer, inner netip.Prefix) bool {
	return outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
}

// Covered reports whether one of the ranges has all addresses of p.
func Covered(ranges []netip.Prefix, p netip.Prefix) bool {
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return covers(r, p) })
}

// InRanges reports whether one of the ranges has the address.
func InRanges(ranges []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a) })
}

// has reports whether a is in addrs, which is sorted.
func has(addrs []netip.Addr, a netip.Addr) bool {
	_, found := slices.BinarySearchFunc(addrs, a, netip.Addr.Compare)
	return found
}

func containsAddr(addrs []netip.Addr, a netip.Addr) bool {
	return slices.ContainsFunc(addrs, func(b netip.Addr) bool {
		return b.Unmap().WithZone("") == a
	})
}
