package chains

import (
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"

	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// A pod may reach a node through this node, by a NodePort whose backend is a process of a host,
// even of the pod's own host. After that translation the packet cannot keep its source, because
// peers accept a pod's address only from the pod's node, and the reply must return through this
// node. It cannot have this node's address either, because the reply would be host to host. So its
// source becomes self, an address in this node's pod prefix, which peers accept only from this
// node's tunnel:
//
//	pod of A ═► B: translated to C or A, source becomes self ═► answers self ═► B ═► pod of A
//
// This applies only to connections that other programs translated here, because B forwards no other
// packets to nodes. A pod of B itself keeps its source, which peers accept from B. While self is
// unknown, sources are kept, and the peer's tunnel drops the packet.

// ctDstNAT is IPS_DST_NAT (nf_conntrack_common.h).
const ctDstNAT = 1 << 5

// selfAddrs returns the addresses that this node translates to, at most one a family: the first
// address of a pod prefix. host-local reserves it for a gateway that does not exist, so no pod and
// no host has it. A prefix of one address has none.
func selfAddrs(podPrefixes []netip.Prefix) (self []netip.Addr) {
	for _, p := range podPrefixes {
		if a := p.Masked().Addr().Next(); p.Contains(a) && !a.Is4In6() {
			self = append(self, a)
		}
	}
	return firstOfEach(self)
}

// firstOfEach returns the first address of each family.
func firstOfEach(addrs []netip.Addr) (first []netip.Addr) {
	for _, a := range addrs {
		same := func(b netip.Addr) bool { return a.Is4() == b.Is4() }
		if !slices.ContainsFunc(first, same) {
			first = append(first, a)
		}
	}
	return first
}

// sendFromSelf translates the source of packets that came out of a tunnel, were translated to a
// node, and enter a tunnel again.
func sendFromSelf() (rules []nft.Rule) {
	for _, f := range families {
		rules = append(rules, nft.All(nft.InGroup(nft.Eq, abi.TunnelGroup),
			nft.OutGroup(nft.Eq, abi.TunnelGroup), f.daddr.In(f.nodes),
			nft.Status(ctDstNAT, nft.Neq), f.sourceFrom(f.self)))
	}
	return rules
}

// sourceFrom translates the source to the address that a map has for the group of tunnels. If the
// map has no address, the rule does nothing.
func (f family) sourceFrom(name string) nft.Rule {
	return nft.Rule{
		&expr.Meta{Key: expr.MetaKeyOIFGROUP, Register: 1},
		nft.Value(name),
		nft.SourceNAT(f.saddr.Family),
	}
}

// Peers accept a packet of this node only from the addresses of its Node. A masquerade rule
// (kube-proxy: NodePort, LoadBalancer, host to ClusterIP) lets the kernel choose a source, but
// veil0 has no address. The kernel then takes the first global address of the lowest ifindex
// (inet_select_addr), or RFC 6724's choice. On a node with a second NIC, a VIP on lo or a second
// IPv6 address that may be a wrong one, and the peer drops the packet. So this chain decides the
// source before other programs do:
//
//	client ─► NodePort: backend elsewhere ─► keep_source: this node's own address ─► veil0 ═► peer
//	                                         (kube-proxy's masquerade comes too late)
//
// Earlier rules decide the source of packets of pods and tunnels (sendFromSelf, sendToPods).
// Packets of a service flow (ServiceMark) get their source from the programs at links.

// sendToPods fixes the source of packets from pods to pods of other nodes. kube-proxy masquerades
// them if they were sent to a NodePort of any node:
//
//	pod ─► own node's NodePort: backend elsewhere ─► keeps its source ─► veil0 ═► peer
//	pod of A ═► B's NodePort: backend on A or C ─► B's own address ─► veil0 ═► peer
//
// A pod of this node keeps its source, which the peer accepts from this node. A pod of another node
// cannot keep it, because peers accept its address only from its own node, and the reply must
// return through this node.
func sendToPods() (rules []nft.Rule) {
	out := nft.OutGroup(nft.Eq, abi.TunnelGroup)
	for _, f := range families {
		rules = append(rules,
			nft.All(nft.InGroup(nft.Eq, abi.PodGroup), out, f.daddr.In(f.ranges), f.saddr.Load(),
				f.sourceKept()),
			nft.All(nft.InGroup(nft.Eq, abi.TunnelGroup), out, f.daddr.In(f.ranges),
				nft.Status(ctDstNAT, nft.Neq), f.sourceFrom(f.source)))
	}
	return rules
}

// sendFromOwn fixes the source of the node's own packets into a tunnel, and of packets that it
// forwards there for a client outside. A source in SelfAddrs stays. Any other source is replaced by
// the preferred address.
func sendFromOwn() []nft.Rule {
	rules := []nft.Rule{nft.All(fromInside(), nft.Return), passServed()}
	out := nft.OutGroup(nft.Eq, abi.TunnelGroup)
	for _, f := range families {
		rules = append(rules, nft.All(out, f.saddr.In(f.own), f.sourceKept()))
	}
	for _, f := range families {
		rules = append(rules, nft.All(out, f.saddr.NotIn(f.ranges), f.sourceFrom(f.source)))
	}
	return rules
}
