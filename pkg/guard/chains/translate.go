package chains

import (
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// A pod's packet to a node goes through the tunnel, but other programs may translate its source to
// this node's address: kube-proxy with masqueradeAll or without a cluster CIDR, or the rules of a
// former network. The node's reply would then be host to host, in clear:
//
//	pod ─► source becomes node-1's ─► veil0 ═► node-2: answers node-1 ─► NIC, in clear
//
// So a pod's packets to nodes keep their source. A packet that lost its source nevertheless,
// because its connection is older than the rule, does not enter the tunnel. The same holds for
// packets of other nodes' pods that pass this node, for example to a NodePort: they are routed and
// judged like packets of this node's pods. Their source is decided in source.go.

// beforeSourceNAT is before priority srcnat (100): the first chain that translates decides.
const beforeSourceNAT = 90

// ctOriginal and ctReply are IP_CT_DIR_ORIGINAL and IP_CT_DIR_REPLY (nf_conntrack_tuple_common.h).
const ctOriginal, ctReply = 0, 1

// family holds the header fields, the type of addresses and the names of sets of an address family.
type family struct {
	saddr, daddr nft.Field
	addr         nftables.SetDatatype
	version      string // the suffix of the names

	nodes, ranges, vips, self, own, source, endpoints, outer string
}

var families = []family{newFamily(nft.Source4, nft.Destination4, nftables.TypeIPAddr, "4"),
	newFamily(nft.Source6, nft.Destination6, nftables.TypeIP6Addr, "6")}

func newFamily(saddr, daddr nft.Field, addr nftables.SetDatatype, v string) family {
	return family{saddr, daddr, addr, v, setNodes + v, setRanges + v, setVIPs + v, setSelf + v,
		setOwn + v, setSource + v, setEndpoints + v, setOuter + v}
}

// familyOf returns the family of an address.
func familyOf(a netip.Addr) family {
	if a.Is4() {
		return families[0]
	}
	return families[1]
}

// skipTunnelled accepts packets out of a tunnel and sets the mark of pods' packets on them. Their
// routing then uses the same table, which reaches nodes only by a tunnel.
func skipTunnelled() nft.Rule {
	return nft.All(nft.InGroup(nft.Eq, abi.TunnelGroup), nft.SetMark(0, abi.PodMark), nft.Return)
}

// keepSource translates the source to itself, so that no later rule translates it, because NAT
// applies only once to a connection. Packets from a pod or a tunnel are recognized by their link.
// Other packets with the mark belong to a client of a service.
func keepSource() (rules []nft.Rule) {
	for _, f := range families {
		for _, from := range []nft.Rule{fromInside(), marked()} {
			rules = append(rules, nft.All(nft.OutGroup(nft.Eq, abi.TunnelGroup), from,
				f.daddr.In(f.nodes), f.saddr.Load(), f.sourceKept()))
		}
	}
	return rules
}

// sourceKept translates the source to the address in register 1, which holds the packet's own
// source.
func (f family) sourceKept() nft.Rule { return nft.Rule{nft.SourceNAT(f.saddr.Family)} }

// enterTunnel judges packets that are about to enter a tunnel. Most go to pods and pass with the
// first condition of their family; pods' packets to nodes remain.
func enterTunnel() (rules []nft.Rule) {
	for _, f := range families {
		rules = append(rules, nft.All(f.daddr.NotIn(f.nodes), nft.Return))
	}
	hosts := nft.All(nft.Mark(abi.PodMark, nft.Eq, 0), nft.Return)
	return slices.Concat(rules, dropTranslated(fromInside()), []nft.Rule{hosts},
		dropTranslated(unserved()))
}

// dropTranslated drops packets that match of and have a source outside the ranges, because their
// source was translated. Replies pass, since their source is rightly translated. The node's own
// marked packets, its probes, have no input link and pass too. of must leave out packets of a
// service's client that came in by a guarded link, because their own source is outside the ranges.
func dropTranslated(of nft.Rule) (rules []nft.Rule) {
	for _, f := range families {
		rules = append(rules, nft.All(nft.Meta(expr.MetaKeyIIF, nft.Neq, nft.Native(0)), of,
			nft.Direction(nft.Eq, ctOriginal), f.saddr.NotIn(f.ranges), Drop(Translated)))
	}
	return rules
}

// marked matches packets of pods.
func marked() nft.Rule { return nft.Mark(abi.PodMark, nft.Neq, 0) }

// keepChain returns the chain that decides sources before any other chain can.
func keepChain() nft.Chain {
	return nft.Base("keep_source", nftables.ChainTypeNAT, nftables.ChainHookPostrouting,
		beforeSourceNAT, slices.Concat(sendFromSelf(), keepSource(), sendToPods(), sendFromOwn())...)
}

// A client outside connects to a service. At the link its packet has the service's address. Inside
// this host the packet has the backend's address, and so does the reply until it leaves. The
// programs at links that translate between the two mark such packets, both ways:
//
//	client > service ─► NIC: guard, then translated and marked ─► here: client > backend ─► pod or tunnel
//	client < service ◄─ NIC: translated, then guard ◄──────────── here: client < backend, marked ◄─ pod or tunnel
//
// With that mark, backend addresses are allowed inbound as destination and outbound as source: the
// program at the link judges the addresses that the network sees. No other host can set a mark, and
// a packet that leaves a pod's network namespace loses it. A pod's packet still reaches a backend
// only by a tunnel.

// A pod's packet to a service may stay untranslated: it is a segment of a forgotten flow or a
// fragment, or the service table is lost. A packet to a ClusterIP is dropped, because Ranges
// contains its address. A packet to a LoadBalancer IP would leave in clear, although a backend may
// be inside. So a pod's packets to such addresses are dropped, except replies: a load balancer that
// does not keep its clients' addresses connects from the address of the service.
//
// Connection tracking recognizes replies, and a rule marks them for the programs at links, which
// cannot recognize them. Routes cannot distinguish replies from other packets. A packet that opens
// such a TCP connection was answered with a reset earlier (tcp.go).

// markAnswers marks and accepts pods' replies to addresses of services. A packet without a
// connection, or of an unknown one, continues to the next rule.
func markAnswers() (rules []nft.Rule) {
	for _, f := range families {
		rules = append(rules, nft.All(nft.Direction(nft.Eq, ctReply), f.daddr.In(f.vips),
			nft.SetMark(0, abi.ServiceMark), nft.Return))
	}
	return rules
}

// dropUntranslated drops pods' packets to addresses of services. Earlier rules have accepted
// translated packets and replies.
func dropUntranslated() (rules []nft.Rule) {
	for _, f := range families {
		rules = append(rules, nft.All(f.daddr.In(f.vips), Drop(Untranslated)))
	}
	return rules
}

// unserved matches packets that belong to no service flow.
func unserved() nft.Rule { return nft.Mark(abi.ServiceMark, nft.Eq, 0) }

// passServed accepts packets of a service flow.
func passServed() nft.Rule { return nft.All(nft.Mark(abi.ServiceMark, nft.Neq, 0), nft.Return) }
