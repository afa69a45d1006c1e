package chains

import (
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// A pod's forbidden destinations have unreachable routes. The kernel reports those by ICMP, but to
// each address only about once in two seconds: ip_error (net/ipv4/route.c) and icmp_send share one
// budget. An application would wait most of the time. A reset has no rate limit, so a packet that
// opens a TCP connection gets one. Packets of an established connection are only dropped, because
// the route may come back.
//
//	pod ─► SYN ─► dstnat (-100): services are translated ─► refuse (0): no route? ─► reset

// Flags of TCP and their offset in the header (RFC 9293, section 3.1).
const (
	tcpFlags                    = 13
	tcpFIN, tcpSYN, tcpRST      = 0x01, 0x02, 0x04
	tcpACK                      = 0x10
	tcpOpens               byte = tcpFIN | tcpSYN | tcpRST | tcpACK
)

// refuseChain returns the chain that answers with a reset if a pod's packet opens a connection to a
// destination without a route.
func refuseChain() nft.Chain {
	rules := []nft.Rule{
		nft.All(nft.Proto(nft.Neq, unix.IPPROTO_TCP), nft.Return),
		nft.All(nft.InGroup(nft.Neq, abi.PodGroup), nft.Return),
		nft.All(opening(nft.Neq), nft.Return),
		restoreMark(), // the route look-up uses it
		nft.All(toLocal(), nft.Return),
		nft.All(nft.Rule{
			&expr.Fib{Register: 1, ResultOIF: true, FlagDADDR: true, FlagMARK: true},
			&expr.Cmp{Register: 1, Data: nft.Native(0)},
		}, Drop(NoRoute)),
	}
	for _, f := range families { // Packets that would open a connection to a service Untranslated.
		rules = append(rules, nft.All(unserved(), f.daddr.In(f.vips), nft.Reset))
	}
	return nft.Base("refuse", nftables.ChainTypeFilter, nftables.ChainHookPrerouting,
		*nftables.ChainPriorityFilter, rules...)
}

// Other programs translate a pod's packets to a service by their connection tracking entry. That
// entry may be lost: it times out, an administrator deletes it, or the link that masquerading used
// disappears. Connection tracking then takes the connection up again from any segment
// (nf_conntrack_tcp_loose), as one to the service address itself. If no service has that address
// any more, the pod's next segment would leave in clear:
//
//	before   pod ─► service, becomes backend ─► veil0 ═►
//	after    pod ─► service, unassigned now ──► NIC, masqueraded
//
// So a pod's TCP connection leaves the cluster only if connection tracking has seen its SYN. Both
// chains are NAT chains: the kernel evaluates them only for the first packet of a tracked
// connection (nf_nat_inet_fn), so established connections do not pay for them. A packet dropped
// here leaves no entry, so the next one counts as first again.
//
// The pod would retransmit a dropped segment for a quarter of an hour, in vain: connection tracking
// has no route back for its replies. So the pod gets a reset if a rule before routing can tell that
// the packet would leave.
//
// The programs at links track their own flows (ServiceMark) from the SYN on, regardless of how
// connection tracking changed the addresses.

// beforeAllNAT is before every other NAT chain, because the first chain that translates a packet
// ends the walk. The kernel accepts NAT chains only after connection tracking (-200).
const beforeAllNAT = -199

// midstreamChain drops TCP segments that leave the cluster and take a connection up midstream, from
// this node's pods or out of a tunnel. Replies of this node to a marked packet have no input link,
// and packets of a client outside have another link.
func midstreamChain() nft.Chain {
	return nft.Base("midstream", nftables.ChainTypeNAT, nftables.ChainHookPostrouting,
		beforeAllNAT,
		nft.All(nft.OutGroup(nft.Eq, abi.PodGroup), nft.Return),
		nft.All(nft.OutGroup(nft.Eq, abi.TunnelGroup), nft.Return),
		nft.All(nft.Proto(nft.Neq, unix.IPPROTO_TCP), nft.Return),
		nft.All(opening(nft.Eq), nft.Return),
		passServed(),
		nft.All(nft.InGroup(nft.Eq, abi.PodGroup), Drop(Midstream)),
		nft.All(nft.InGroup(nft.Eq, abi.TunnelGroup), Drop(Midstream)))
}

// refuseMidstreamChain answers such a segment of a pod with a reset if no rule translates it. It
// runs after dstnat (-100), because a translation by other rules then ends the walk earlier.
func refuseMidstreamChain() nft.Chain {
	rules := []nft.Rule{
		nft.All(nft.InGroup(nft.Neq, abi.PodGroup), nft.Return),
		nft.All(nft.Proto(nft.Neq, unix.IPPROTO_TCP), nft.Return),
		nft.All(opening(nft.Eq), nft.Return),
		passServed(),
	}
	for _, f := range families {
		for _, set := range []string{f.ranges, f.nodes} {
			rules = append(rules, nft.All(f.daddr.In(set), nft.Return))
		}
	}
	return nft.Base("refuse_midstream", nftables.ChainTypeNAT, nftables.ChainHookPrerouting,
		*nftables.ChainPriorityFilter, append(rules, nft.All(toLocal(), nft.Return),
			nft.Jump(countPrefix+Midstream), nft.Reset)...)
}

// opening matches TCP segments that open a connection, or with nft.Neq all others.
func opening(op expr.CmpOp) nft.Rule {
	return nft.Rule{
		nft.Load(nft.Transport, tcpFlags, 1),
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{tcpOpens},
			Xor: []byte{0}},
		&expr.Cmp{Op: op, Register: 1, Data: []byte{tcpSYN}},
	}
}

// toLocal matches packets for this node itself. Their route has no output link either.
func toLocal() nft.Rule {
	return nft.Rule{
		&expr.Fib{Register: 1, ResultADDRTYPE: true, FlagDADDR: true, FlagMARK: true},
		&expr.Cmp{Register: 1, Data: nft.Native(unix.RTN_LOCAL)},
	}
}
