package chains

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/cluster"
)

// Another cluster is a stranger. New connections out of a tunnel with an address of a site reach
// only exported endpoints of this node:
//
//	site ═► veil0 ─► conntrack (-200) ─► sites (-150) ─► dstnat (-100) ─► pod
//	                                      ├─ packet of a known connection, not a SYN: pass
//	                                      └─ address, protocol, port not exported to this site: drop
//
// A SYN is judged although its connection is known, because it would open another connection from
// the same port. Unanswered datagrams are a known connection from the second one on: conntrack
// confirmed its entry after the first one had passed all chains. When an endpoint is closed, veild
// deletes its known connections. Conntrack would take them up again from the pod's next segment, as
// connections of the pod. So a pod's segment to a site that is not a SYN, of an unknown connection,
// is answered with a reset (sites_midstream).
//
// The source decides the site, because a tunnel has the addresses of its peer alone. The chain is
// before the NAT of other programs, so a site reaches no address of a service. The programs at
// links translate earlier: then the backend's address is judged. This node's own addresses are
// judged like all others, except for probes of path MTUs and echoes, from a site's node to this
// node. Conntrack does not track these echoes (sites_echoes), so a site cannot fill its table with
// them.

// Site is another cluster whose new connections reach only exported endpoints.
type Site struct {
	Name string
	// Ranges contain all addresses of the site.
	Ranges []netip.Prefix
}

func (s Site) equal(o Site) bool {
	return s.Name == o.Name && slices.Equal(s.Ranges, o.Ranges)
}

// afterTracking is after connection tracking (-200), and before dstnat (-100).
const afterTracking = -150

// chainSiteReset is the chain in which a pod's segment to a site is answered with a reset.
const chainSiteReset = "reset_site"

// Bits of the state of a packet (NF_CT_STATE_BIT in include/net/netfilter/nf_conntrack_core.h and
// uapi/linux/netfilter/nf_conntrack_common.h).
const ctEstablished, ctRelated = 1 << 1, 1 << 2

// ctConfirmed is set in the status of a connection whose first packet passed all chains
// (IPS_CONFIRMED in uapi/linux/netfilter/nf_conntrack_common.h).
const ctConfirmed = 1 << 3

// siteSets are the names of the sets of a site for a family: its ranges, and the endpoints that are
// open to it.
type siteSets struct{ ranges, exports string }

// siteSetsOf returns the names for the site at a place in Settings.Sites.
func siteSetsOf(i int, f family) siteSets {
	return siteSets{fmt.Sprintf("site%d_ranges%s", i+1, f.version),
		fmt.Sprintf("site%d_exports%s", i+1, f.version)}
}

// addSites adds the sets of sites and the chain that judges packets out of tunnels. Without sites
// it adds nothing.
func addSites(t *nft.Table, sites []Site, openings []cluster.Opening) {
	if len(sites) == 0 {
		return
	}
	byName := make(map[string]int, len(sites))
	for i, s := range sites {
		byName[s.Name] = i
		for _, f := range families {
			names := siteSetsOf(i, f)
			t.Sets = append(t.Sets,
				nft.Set{Set: nftables.Set{Name: names.ranges, KeyType: f.addr, Interval: true}},
				nft.Set{Set: nftables.Set{Name: names.exports, Concatenation: true,
					KeyType: nftables.MustConcatSetType(f.addr, nftables.TypeInetProto,
						nftables.TypeInetService)}})
		}
		for _, p := range outermost(s.Ranges) {
			set := t.Set(siteSetsOf(i, familyOf(p.Addr())).ranges)
			set.Elements = append(set.Elements, nft.Interval(p))
		}
	}

	for _, o := range distinct(openings) {
		i, known := byName[o.Site]
		if !known {
			continue
		}
		set := t.Set(siteSetsOf(i, familyOf(o.Endpoint.Addr())).exports)
		port := binary.BigEndian.AppendUint16(nil, o.Endpoint.Port())
		set.Elements = append(set.Elements, nft.Key(o.Endpoint.Addr().AsSlice(),
			[]byte{o.Protocol, 0, 0, 0}, append(port, 0, 0)))
	}
	t.Chains = append(t.Chains, echoChain(), siteChain(len(sites)),
		nft.Target(chainSiteReset, nft.Jump(countPrefix+SiteNotExported), nft.Reset),
		siteMidstreamChain(len(sites)))
}

// siteChain judges packets out of tunnels, for a number of sites.
func siteChain(sites int) nft.Chain {
	rules := []nft.Rule{
		nft.All(nft.InGroup(nft.Neq, abi.TunnelGroup), nft.Return),
		nft.All(confirmed(), nft.Proto(nft.Neq, unix.IPPROTO_TCP), nft.Return),
		nft.All(inState(ctEstablished), opening(nft.Neq), nft.Return),
	}
	for _, i := range icmps {
		rules = append(rules, nft.All(i.match(), inState(ctRelated), nft.Return))
	}
	for _, f := range families {
		rules = append(rules, f.passProbe(), nft.All(f.echo(), nft.Return))
	}
	for i := range sites {
		for _, f := range families {
			names := siteSetsOf(i, f)
			rules = append(rules,
				nft.All(f.saddr.In(names.ranges), f.toOpened(names.exports), nft.Return),
				nft.All(f.saddr.In(names.ranges), Drop(SiteNotExported)))
		}
	}
	return nft.Base("sites", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, afterTracking,
		rules...)
}

// inState matches packets in one of the states of bits.
func inState(bits uint32) nft.Rule {
	return nft.Bits(&expr.Ct{Key: expr.CtKeySTATE, Register: 1}, bits, nft.Neq, 0)
}

// confirmed matches packets of connections whose first packet passed all chains.
func confirmed() nft.Rule {
	return nft.Bits(&expr.Ct{Key: expr.CtKeySTATUS, Register: 1}, ctConfirmed, nft.Neq, 0)
}

// toOpened matches packets of the family to an address, protocol and port in a set. The key begins
// in register 1 and continues in registers of 4 bytes. The kernel returns NFT_REG_2 for
// NFT_REG32_04, which is the same memory, and rules are compared.
func (f family) toOpened(set string) nft.Rule {
	proto, port := uint32(unix.NFT_REG32_01), uint32(unix.NFT_REG32_02)
	if f.daddr.Family == unix.NFPROTO_IPV6 {
		proto, port = unix.NFT_REG_2, unix.NFT_REG32_05
	}
	return nft.Rule{
		nft.Load(nft.Network, f.daddr.Offset, f.daddr.Size),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: proto},
		&expr.Payload{DestRegister: port, Base: nft.Transport, Offset: 2, Len: 2},
		nft.In(set),
	}
}

// passProbe accepts the probes of path MTUs, from a node to this node.
func (f family) passProbe() nft.Rule {
	port := binary.BigEndian.AppendUint16(nil, abi.ProbePort)
	return nft.All(nft.Proto(nft.Eq, unix.IPPROTO_UDP),
		nft.Bytes(nft.Transport, 0, slices.Concat(port, port)...),
		f.saddr.In(f.nodes), f.daddr.In(f.own), nft.Return)
}

// echo matches the ICMP echoes of pkg/reach, from a node to this node.
func (f family) echo() nft.Rule {
	proto, echo := byte(unix.IPPROTO_ICMP), byte(8)
	if f.saddr.Family == unix.NFPROTO_IPV6 {
		proto, echo = unix.IPPROTO_ICMPV6, 128
	}
	return nft.All(nft.Proto(nft.Eq, proto), nft.Bytes(nft.Transport, 0, echo, 0),
		f.saddr.In(f.nodes), f.daddr.In(f.own))
}

// echoChain keeps echoes out of conntrack. The answer of this node's kernel gets no entry either.
func echoChain() nft.Chain {
	rules := []nft.Rule{nft.All(nft.InGroup(nft.Neq, abi.TunnelGroup), nft.Return)}
	for _, f := range families {
		rules = append(rules, nft.All(f.echo(), nft.Rule{&expr.Notrack{}}))
	}
	return nft.Base("sites_echoes", nftables.ChainTypeFilter, nftables.ChainHookPrerouting,
		*nftables.ChainPriorityRaw, rules...)
}

// siteMidstreamChain resets a pod's TCP connection with a site that conntrack does not know. It is
// a NAT chain, which the kernel evaluates only for the first packet of a tracked connection.
func siteMidstreamChain(sites int) nft.Chain {
	rules := []nft.Rule{
		nft.All(nft.InGroup(nft.Neq, abi.PodGroup), nft.Return),
		nft.All(nft.Proto(nft.Neq, unix.IPPROTO_TCP), nft.Return),
		nft.All(opening(nft.Eq), nft.Return),
	}
	for i := range sites {
		for _, f := range families {
			rules = append(rules, nft.All(f.daddr.In(siteSetsOf(i, f).ranges),
				nft.Goto(chainSiteReset)))
		}
	}
	return nft.Base("sites_midstream", nftables.ChainTypeNAT, nftables.ChainHookPrerouting,
		afterTracking+1, rules...)
}
