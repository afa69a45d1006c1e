package guard

import (
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

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
func fromInside() *match {
	return &match{fmt.Sprintf("iifgroup & %#x == %#x", groupMask, abi.PodGroup), []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFGROUP, Register: 1},
		masked(groupMask),
		compared(expr.CmpOpEq, abi.PodGroup),
	}}
}

// masked keeps the bits of mask in register 1.
func masked(mask uint32) *expr.Bitwise {
	return &expr.Bitwise{
		SourceRegister: 1, DestRegister: 1, Len: 4,
		Mask: binaryutil.NativeEndian.PutUint32(mask), Xor: make([]byte, 4),
	}
}

// compared compares register 1 with a number.
func compared(op expr.CmpOp, v uint32) *expr.Cmp {
	return &expr.Cmp{Op: op, Register: 1, Data: binaryutil.NativeEndian.PutUint32(v)}
}

// restoreChain is the last at prerouting.
func restoreChain() chain {
	return chain{"before_routing", nftables.ChainTypeFilter, nftables.ChainHookPrerouting,
		nftables.ChainPriorityRef(beforeRouting), []rule{restoreMark()}}
}

// restoreMark restores the mark that routes such packets, and counts how often it was lost.
func restoreMark() rule {
	lost := fromInside()
	lost.text += fmt.Sprintf(" mark & %#x != %#x", abi.PodMark|abi.TunnelMark, abi.PodMark)
	lost.exprs = append(lost.exprs,
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		masked(abi.PodMark|abi.TunnelMark),
		compared(expr.CmpOpNeq, abi.PodMark),
		&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: MarksRestored})
	set := rewriteMark(abi.TunnelMark, abi.PodMark)
	return rule{
		fmt.Sprintf("%s counter %s %s", lost.text, MarksRestored, set.text),
		append(lost.exprs, set.exprs...),
	}
}

// rewriteMark clears and sets bits of the mark.
func rewriteMark(clear, set uint32) *match {
	return &match{fmt.Sprintf("mark set mark & %#x | %#x", ^clear, set), []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		&expr.Bitwise{
			SourceRegister: 1, DestRegister: 1, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(^(clear | set)),
			Xor:  binaryutil.NativeEndian.PutUint32(set),
		},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: 1},
	}}
}

// judgeTunnelled judges packets that came in by a tunnel and leave by another link. It passes the
// encrypted packets of the kernel's WireGuard: UDP with the tunnels' mark, from an untranslated
// address of this node. A forwarded packet has such a source only by translation.
func judgeTunnelled() []rule {
	outer := encrypted()
	return []rule{
		ruleOf(translatedFlow(), expr.VerdictGoto, chainInside),
		ruleOf(&match{outer.text + " fib saddr type local", append(outer.exprs,
			&expr.Fib{Register: 1, ResultADDRTYPE: true, FlagSADDR: true},
			compared(expr.CmpOpEq, typeLocal),
		)}, expr.VerdictReturn, ""),
		ruleOf(&match{}, expr.VerdictGoto, chainInside),
	}
}

// translatedFlow matches packets of a connection with a translated address. A packet that
// connection tracking does not see was not translated.
func translatedFlow() *match {
	const mask = ctSrcNAT | ctDstNAT
	return &match{fmt.Sprintf("ct status & %#x != 0", mask), []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATUS, Register: 1},
		masked(mask),
		compared(expr.CmpOpNeq, 0),
	}}
}

// judgeInside judges packets from pods and tunnels that leave by neither, whatever their mark.
func judgeInside(quotes []rule) []rule {
	return slices.Concat(dropMarked(), dropSources(unserved()), dropDestinations(nil),
		[]rule{passServed()}, quotes, []rule{ruleOf(&match{}, expr.VerdictGoto, chainAnswers)})
}
