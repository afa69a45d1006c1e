package chains

import (
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// Other programs may overwrite a packet's mark: wg-quick restores the mark of the connection at
// prerouting, QoS rules set one when they forward. So the input link of a packet decides whether it
// belongs to a pod or a tunnel. The mark decides only the route, and the chain before_routing
// restores it:
//
//	pod ─► raw-10: mark ─► another's rule: mark lost ─► before_routing: mark restored ─► route
//	    ─► another's rule: mark lost ─► postrouting: judged by iifgroup
//
// A packet that this node itself sends has no input link, with one exception: the encrypted packets
// of the kernel's WireGuard have the tunnel device as theirs (send4 in
// drivers/net/wireguard/socket.c).

// MarksRestored is the name of the counter of packets whose mark another program had overwritten.
const MarksRestored = "marks_restored"

// beforeRouting is after the prerouting priorities at which other programs change marks or
// destinations, and before routing.
const beforeRouting = 1000

// ctSrcNAT is IPS_SRC_NAT (nf_conntrack_common.h).
const ctSrcNAT = 1 << 4

// The link groups of pods and tunnels differ in one bit, so fromInside needs one comparison.
const groupMask = ^(abi.PodGroup ^ abi.TunnelGroup)

// fromInside matches packets that came in by the link of a pod or by a tunnel.
func fromInside() nft.Rule {
	return nft.Bits(&expr.Meta{Key: expr.MetaKeyIIFGROUP, Register: 1}, groupMask, nft.Eq,
		abi.PodGroup)
}

// restoreChain returns the last chain at prerouting.
func restoreChain() nft.Chain {
	return nft.Base("before_routing", nftables.ChainTypeFilter, nftables.ChainHookPrerouting,
		beforeRouting, restoreMark())
}

// restoreMark returns a rule that restores the mark of pods' and tunnels' packets, which decides
// their route. It counts how often the mark was lost.
func restoreMark() nft.Rule {
	return nft.All(fromInside(), nft.Mark(abi.PodMark|abi.TunnelMark, nft.Neq, abi.PodMark),
		nft.Count(MarksRestored), nft.SetMark(abi.TunnelMark, abi.PodMark))
}

// judgeTunnelled judges packets that came in by a tunnel and leave by another link. It passes the
// encrypted packets of the kernel's WireGuard: UDP with the tunnels' mark, from an untranslated
// address of this node. A forwarded packet has such a source only if NAT changed it, and NAT does
// not apply to a packet that connection tracking does not see.
func judgeTunnelled() []nft.Rule {
	return []nft.Rule{
		nft.All(nft.Status(ctSrcNAT|ctDstNAT, nft.Neq), nft.Goto(chainInside)),
		nft.All(encrypted(), nft.Rule{
			&expr.Fib{Register: 1, ResultADDRTYPE: true, FlagSADDR: true},
			&expr.Cmp{Register: 1, Data: nft.Native(unix.RTN_LOCAL)},
		}, nft.Return),
		nft.Goto(chainInside),
	}
}

// judgeInside judges packets from pods and tunnels that leave neither by a pod's link nor by a
// tunnel, regardless of their mark.
func judgeInside(quotes []nft.Rule) []nft.Rule {
	return slices.Concat(dropMarked(), dropSources(unserved()), dropDestinations(nil),
		[]nft.Rule{passServed()}, quotes, []nft.Rule{nft.Goto(chainAnswers)})
}

// A peer decides what it sends into its tunnel. Without a rule, a compromised node could reach the
// networks around this node with this node's address, which firewalls there may admit:
//
//	peer: 198.51.100.9 into veil0 ═► this node: routed as a pod's, masqueraded ─► 198.51.100.9
//
// Three kinds of packets out of a tunnel may leave the cluster. Packets of a service flow
// (ServiceMark) have passed before. A NodePort with an endpoint outside has DNAT in its connection.
// A reply is a packet that connection tracking sees in the reply direction. Untracked packets are
// none of these.

// dropOutside drops packets that came out of a tunnel and leave the cluster, except replies and
// packets that this node translated.
func dropOutside() []nft.Rule {
	return []nft.Rule{
		nft.All(nft.Direction(nft.Eq, ctReply), nft.Return),
		nft.All(nft.Status(ctDstNAT, nft.Neq), nft.Return),
		Drop(TunnelToOutside),
	}
}

// On a link with route_localnet the kernel accepts packets for 127.0.0.0/8 from outside. The
// portmap plugin sets it on the links of pods with host ports, kube-proxy on all links. Programs
// that listen on loopback expect no remote client (CVE-2020-8558). IPv6 needs no rule: ipv6_rcv
// (net/ipv6/ip6_input.c) accepts ::1 from lo alone.
//
// The rule runs before NAT. Replies to a host process that used a host port are translated back to
// 127.0.0.1 only later, and so pass.

// loopback4 is the first byte of IPv4 loopback addresses (RFC 1122, section 3.2.1.3).
const loopback4 = 127

// dropLoopback drops packets of pods and tunnels to the node's loopback addresses.
func dropLoopback() nft.Rule {
	return nft.All(fromInside(), nft.Destination4.Begins(loopback4), Drop(ToLoopback))
}
