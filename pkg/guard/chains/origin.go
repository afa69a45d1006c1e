package chains

import (
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// Other programs may overwrite a packet's mark: wg-quick restores the mark of the connection at
// prerouting, QoS rules set one when they forward. So the link by which a packet came in decides
// whose it is. The mark decides only the route, and before_routing restores it:
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

// The two groups differ in one bit, so fromInside is one comparison.
const groupMask = ^(abi.PodGroup ^ abi.TunnelGroup)

// fromInside matches packets that came in by the link of a pod or by a tunnel.
func fromInside() nft.Rule {
	return nft.Bits(&expr.Meta{Key: expr.MetaKeyIIFGROUP, Register: 1}, groupMask, nft.Eq,
		abi.PodGroup)
}

// restoreChain is the last at prerouting.
func restoreChain() nft.Chain {
	return nft.Base("before_routing", nftables.ChainTypeFilter, nftables.ChainHookPrerouting,
		beforeRouting, restoreMark())
}

// restoreMark restores the mark that routes such packets, and counts how often it was lost.
func restoreMark() nft.Rule {
	return nft.All(fromInside(), nft.Mark(abi.PodMark|abi.TunnelMark, nft.Neq, abi.PodMark),
		nft.Count(MarksRestored), nft.SetMark(abi.TunnelMark, abi.PodMark))
}

// judgeTunnelled judges packets that came in by a tunnel and leave by another link. It passes the
// encrypted packets of the kernel's WireGuard: UDP with the tunnels' mark, from an untranslated
// address of this node. A forwarded packet has such a source only by translation. A packet that
// connection tracking does not see was not translated.
func judgeTunnelled() []nft.Rule {
	return []nft.Rule{
		nft.All(nft.Status(ctSrcNAT|ctDstNAT, nft.Neq), nft.Goto(chainInside)),
		nft.All(encrypted(), nft.Rule{
			&expr.Fib{Register: 1, ResultADDRTYPE: true, FlagSADDR: true},
			&expr.Cmp{Register: 1, Data: nft.Native(typeLocal)},
		}, nft.Return),
		nft.Goto(chainInside),
	}
}

// judgeInside judges packets from pods and tunnels that leave by neither, regardless of their mark.
func judgeInside(quotes []nft.Rule) []nft.Rule {
	return slices.Concat(dropMarked(), dropSources(unserved()), dropDestinations(nil),
		[]nft.Rule{passServed()}, quotes, []nft.Rule{nft.Goto(chainAnswers)})
}
