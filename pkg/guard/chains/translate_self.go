package chains

import (
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"

	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// A pod may reach a node through another one: by that node's NodePort, whose backend is a process
// of a host, even of the pod's own host. From there on the packet cannot keep its source, because
// peers accept a pod's address only from the pod's node, and the reply must return through here. It
// cannot have this node's address either, because the reply would be host to host. So its source
// becomes self, an address among this node's pods' addresses, which peers accept only from this
// node's tunnel:
//
//	pod of A ═► B: translated to C or A, source becomes self ═► answers self ═► B ═► pod of A
//
// This applies only to connections that other programs translated here: B forwards nothing else to
// nodes. A pod of B itself keeps its source, which is valid where it arrives. While self is
// unknown, sources are kept, and the peer's tunnel drops the packet.

// ctDstNAT is IPS_DST_NAT (nf_conntrack_common.h).
const ctDstNAT = 1 << 5

// selfAddrs returns the addresses that this node translates to, at most one a family: the first
// address of a pod prefix. host-local reserves it for a gateway that does not exist, so no pod and
// no host has it. A prefix of one address has none.
func selfAddrs(podPrefixes []netip.Prefix) (self []netip.Addr) {
	for _, p := range podPrefixes {
		a := p.Masked().Addr().Next()
		taken := slices.ContainsFunc(self, func(s netip.Addr) bool { return s.Is4() == a.Is4() })
		if p.Contains(a) && !a.Is4In6() && !taken {
			self = append(self, a)
		}
	}
	return self
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

// sourceFrom translates the source to the address that a map has for the group of tunnels; without
// one the rule does nothing.
func (f family) sourceFrom(name string) nft.Rule {
	return nft.Rule{
		&expr.Meta{Key: expr.MetaKeyOIFGROUP, Register: 1},
		nft.Value(name),
		nft.SourceNAT(f.saddr.Family),
	}
}
