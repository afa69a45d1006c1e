package cluster

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// Bounds on what one node may claim. They are far above what any node has, and
// keep one forged object from filling every node's tables and logs.
const (
	maxAddresses = 64
	maxPrefixes  = 16
	maxKeys      = 16
)

// checkNode judges what the Node object of n says, without regard to other
// nodes. It returns what may be believed of its addresses and prefixes and a
// sentence for each thing that may not.
//
// An address that is left out here never reaches Table.NodeAddrs, because
// being there makes it unreachable for pods, and a kubelet may write what it
// likes into the addresses of its own Node. Forged addresses, one by one:
//   - a gateway of the underlay, or the one inside pods: pods would lose
//     whatever the gateway serves, as peer traffic it would go to the forger;
//   - an address of the cluster or service ranges: a host route is longer than a
//     pod prefix, so a forger would black-hole or draw to himself one pod or service;
//   - an API server's, on a node without the control-plane label: pods would lose
//     the API server, or talk to the forger; on a control-plane node it is
//     rightly reached through the tunnel or not at all;
//   - loopback, multicast, unspecified, broadcast, link-local: no node's own;
//   - outside NodeRanges: some address of the world, for instance a resolver's;
//   - another node's: see Resolve, an accepted holder keeps it.
//
// What is left is some address that nobody known holds. When the node is
// refused for something else it is still unreachable for pods: better a pod
// that cannot reach it than bytes in clear to what is probably a node.
func checkNode(n Node, rules Rules, apiServers []netip.Addr) (addrs []netip.Addr, prefixes []netip.Prefix, problems []string) {
	say := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	if n.Name == "" {
		say("a node has no name; delete it")
	}
	if len(n.Addresses) > maxAddresses {
		say("it claims %d addresses, more than %d; nobody needs so many: remove them from the Node's status", len(n.Addresses), maxAddresses)
		n.Addresses = nil
	}
	for _, a := range n.Addresses {
		if why := checkAddr(a, n, rules, apiServers); why != "" {
			say("it claims the node address %s, %s", a, why)
			continue
		}
		addrs = append(addrs, a)
	}
	if len(n.PodPrefixes) > maxPrefixes {
		say("it has %d pod prefixes, more than %d; remove some from Node.spec.podCIDRs", len(n.PodPrefixes), maxPrefixes)
		n.PodPrefixes = nil
	}
	for _, p := range n.PodPrefixes {
		if why := checkPrefix(p, prefixes, rules); why != "" {
			say("it has the pod prefix %s, %s", p, why)
			continue
		}
		prefixes = append(prefixes, p)
	}
	return addrs, prefixes, problems
}

// checkAddr says why a may not be an address of n, "" when it may.
func checkAddr(a netip.Addr, n Node, rules Rules, apiServers []netip.Addr) string {
	const fix = "; correct the node's addresses (kubelet --node-ip) or delete the Node"
	broadcast := netip.AddrFrom4([4]byte{255, 255, 255, 255})
	switch {
	case !a.IsValid() || a.Zone() != "" || a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.IsLinkLocalUnicast() || a == broadcast:
		return "which cannot be reached from other nodes (loopback, link-local, multicast, broadcast or unspecified)" + fix
	case containsAddr(rules.Gateways, a):
		return "which is a gateway's" + fix
	case inAny(rules.ServiceRanges, a):
		return "which lies in a service range" + fix
	case inAny(rules.ClusterRanges, a):
		return "which lies in a cluster range" + fix
	case len(rules.NodeRanges) > 0 && !inAny(rules.NodeRanges, a):
		return "which lies outside of nodeRanges; extend nodeRanges if it is a node's, or delete the Node"
	case !n.ControlPlane && slices.Contains(apiServers, a):
		return "which is an API server's, but is no control-plane node; if it is one, give it the label node-role.kubernetes.io/control-plane, else delete the Node"
	}
	return ""
}

// checkPrefix says why p may not be a pod prefix, "" when it may; own are those
// of the same node already accepted.
func checkPrefix(p netip.Prefix, own []netip.Prefix, rules Rules) string {
	switch {
	case !p.IsValid():
		return "which is malformed; correct Node.spec.podCIDRs"
	case !slices.ContainsFunc(rules.ClusterRanges, func(r netip.Prefix) bool { return covers(r, p) }):
		return "which is outside of every cluster range; extend clusterRanges on every node if it is right, else delete the Node and let it join again"
	case slices.ContainsFunc(rules.ServiceRanges, p.Overlaps):
		return "which overlaps a service range; give the node another prefix"
	case slices.ContainsFunc(own, p.Overlaps):
		return "which overlaps another one of its own; correct Node.spec.podCIDRs"
	}
	return ""
}

// checkClaim judges the VeilNode of a node whose Node object was believed, "" when all is well.
func checkClaim(n Node) (problems []string) {
	say := func(format string, args ...any) {
		problems = append(problems, fmt.Sprintf("its VeilNode is not believed: "+format, args...))
	}
	c := n.Claim
	if !slices.Equal(c.PodPrefixes, n.PodPrefixes) {
		say("it claims the pod prefixes %v, but Node.spec.podCIDRs says %v; restart veild on the node to publish again", c.PodPrefixes, n.PodPrefixes)
	}
	switch {
	case len(c.Keys) == 0:
		say("it has no key; restart veild on the node")
	case len(c.Keys) > maxKeys:
		say("it has %d keys, more than %d; delete it, veild publishes it again", len(c.Keys), maxKeys)
	default:
		problems = append(problems, checkKeys(c.Keys)...)
	}
	if len(c.Endpoints) == 0 {
		say("it has no endpoint; restart veild on the node")
	}
	if len(c.Endpoints) > 2 || len(c.Endpoints) == 2 && c.Endpoints[0].Addr().Is4() == c.Endpoints[1].Addr().Is4() {
		say("it has more than one endpoint of a family: %v; restart veild on the node", c.Endpoints[:min(len(c.Endpoints), 4)])
	}
	for _, e := range c.Endpoints[:min(len(c.Endpoints), 2)] {
		if e.Port() == 0 || !slices.Contains(n.Addresses, e.Addr()) {
			say("its endpoint %s is not an address of the node with a port; the node has %v", e, n.Addresses)
		}
	}
	if c.MTU < 0 || c.MTU > MaxMTU {
		say("its underlay MTU is %d, which is not between 0 and %d", c.MTU, MaxMTU)
	}
	return problems
}

// checkKeys judges the sorted keys of one claim.
func checkKeys(keys []Key) (problems []string) {
	seen := map[wgkey.Public]bool{}
	for i, k := range keys {
		switch {
		case k.Public == wgkey.Public{}:
			problems = append(problems, fmt.Sprintf("its VeilNode is not believed: the key of epoch %d is zero; restart veild on the node", k.Epoch))
		case seen[k.Public]:
			problems = append(problems, fmt.Sprintf("its VeilNode is not believed: it has the key %s twice; restart veild on the node", k.Public))
		case i > 0 && keys[i-1].Epoch == k.Epoch:
			problems = append(problems, fmt.Sprintf("its VeilNode is not believed: it has two keys of epoch %d; restart veild on the node", k.Epoch))
		}
		seen[k.Public] = true
	}
	return problems
}

// covers is whether every address of inner is in outer.
func covers(outer, inner netip.Prefix) bool {
	return outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
}

func inAny(ranges []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a) })
}

func containsAddr(addrs []netip.Addr, a netip.Addr) bool {
	return slices.ContainsFunc(addrs, func(b netip.Addr) bool { return b.Unmap().WithZone("") == a })
}
