package guard

import (
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

// Other programs translate a pod's packets to a service by their connection tracking entry. That
// entry may be lost: in time, by hand, or with a link that masquerading used. Connection tracking
// then takes the connection up again from any segment (nf_conntrack_tcp_loose), as one to the
// service address itself. If no service has that address any more, the pod's next segment would
// leave in clear:
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
// has no route back for its replies. So the pod gets a reset, if it is clear before routing that
// the packet leaves.
//
// The programs at links track their own flows (ServiceMark) from the SYN on, whatever connection
// tracking did to the addresses.

// beforeAllNAT is before every other NAT chain: the first that translates ends the walk. The kernel
// accepts NAT chains only after connection tracking (-200).
const beforeAllNAT = -199

// midstreamChain drops TCP segments that leave the cluster and take a connection up midstream, from
// this node's pods or out of a tunnel. Replies of this node to a marked packet have no input link,
// and a client outside has another one.
func midstreamChain() chain {
	rules := []rule{
		ruleOf(ofGroup("oif", expr.MetaKeyOIFGROUP, abi.PodGroup), expr.VerdictReturn, ""),
		ruleOf(ofGroup("oif", expr.MetaKeyOIFGROUP, abi.TunnelGroup), expr.VerdictReturn, ""),
		ruleOf(notTCP(), expr.VerdictReturn, ""),
		ruleOf(opening(expr.CmpOpEq), expr.VerdictReturn, ""),
		passServed(),
	}
	for _, group := range []uint32{abi.PodGroup, abi.TunnelGroup} {
		from := inGroup(group)
		rules = append(rules, rule{fmt.Sprintf("%s counter %s drop", from.text, midstream),
			append(from.exprs,
				&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: midstream},
				&expr.Verdict{Kind: expr.VerdictDrop})})
	}
	return chain{"midstream", nftables.ChainTypeNAT, nftables.ChainHookPostrouting,
		nftables.ChainPriorityRef(beforeAllNAT), rules}
}

// refuseMidstreamChain answers such a segment of a pod with a reset if no rule translates it. It
// runs after dstnat (-100): a translation by other rules ends the walk before it.
func refuseMidstreamChain() chain {
	rules := []rule{ruleOf(notFromPod(), expr.VerdictReturn, ""),
		ruleOf(notTCP(), expr.VerdictReturn, ""),
		ruleOf(opening(expr.CmpOpEq), expr.VerdictReturn, ""), passServed()}
	for _, f := range families {
		for _, set := range []string{f.ranges, f.nodes} {
			inside := &match{fmt.Sprintf("%s @%s", f.daddr, set),
				append(load(f.daddr), &expr.Lookup{SourceRegister: 1, SetName: set})}
			rules = append(rules, ruleOf(inside, expr.VerdictReturn, ""))
		}
	}
	rules = append(rules, ruleOf(toLocal(), expr.VerdictReturn, ""),
		rule{fmt.Sprintf("counter %s reject with tcp reset", midstream), []expr.Any{
			&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: midstream},
			&expr.Reject{Type: unix.NFT_REJECT_TCP_RST},
		}})
	return chain{"refuse_midstream", nftables.ChainTypeNAT, nftables.ChainHookPrerouting,
		nftables.ChainPriorityFilter, rules}
}

func notTCP() *match {
	return &match{"meta l4proto != tcp", []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
	}}
}

func notFromPod() *match {
	return &match{fmt.Sprintf("iifgroup != %#x", abi.PodGroup), []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFGROUP, Register: 1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1,
			Data: binaryutil.NativeEndian.PutUint32(abi.PodGroup)},
	}}
}

// opening matches TCP segments that open a connection, or with CmpOpNeq all others.
func opening(op expr.CmpOp) *match {
	text := map[expr.CmpOp]string{expr.CmpOpEq: "==", expr.CmpOpNeq: "!="}[op]
	return &match{fmt.Sprintf("tcp flags & (fin | syn | rst | ack) %s syn", text), []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: tcpFlags,
			Len: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{tcpOpens},
			Xor: []byte{0}},
		&expr.Cmp{Op: op, Register: 1, Data: []byte{tcpSYN}},
	}}
}

// toLocal matches packets for this node itself.
func toLocal() *match {
	return &match{"fib daddr . mark type local", []expr.Any{
		&expr.Fib{Register: 1, ResultADDRTYPE: true, FlagDADDR: true, FlagMARK: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1,
			Data: binaryutil.NativeEndian.PutUint32(typeLocal)},
	}}
}
