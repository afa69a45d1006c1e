package guard

import (
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

// What a pod sends to the address of a service is translated, by others, by what connection
// tracking knows of the connection. When that is forgotten (in time, by hand, with a link that
// masquerading used), it takes the connection up again from any segment (nf_conntrack_tcp_loose),
// as one to that address itself; and where no service has it any more, the pod's next segment would
// leave in clear:
//
//	before   pod ─► service, becomes backend ─► veil0 ═►
//	after    pod ─► service, nobody's now ────► NIC, masqueraded
//
// So what pods send out of the cluster by TCP begins with a SYN that connection tracking has seen,
// or it does not leave. Both chains are for NAT: the kernel asks them for the first packet of a
// connection that it knows, and for no other (nf_nat_inet_fn), so an established connection does
// not pay for them. A packet that is dropped here leaves nothing that is known, so the next one is
// a first one again.
//
// A dropped segment would be sent again for a quarter of an hour, in vain: connection tracking
// knows no way back for what answers it. So the pod gets a reset, where it is clear before routing
// that the packet leaves.
//
// What is of a flow of the programs at links (ServiceMark) they know from its SYN on, whatever
// connection tracking made of its addresses.

// midstream is the reason of bpf/reasons.go.
const midstream = "pod_midstream"

// beforeAllNAT is before whoever translates: he ends the walk. The kernel takes chains for NAT
// behind connection tracking (-200) only.
const beforeAllNAT = -199

// midstreamChain drops what leaves the cluster and takes a connection up in its midst, of this
// node's pods and of others' that came out of a tunnel. What this node itself answers to a marked
// packet came in by no link, and a client outside by another.
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

// refuseMidstreamChain answers what a pod sends there and nobody translates by a reset. It is
// behind dstnat (-100): what others do translate ends the walk before it, and goes where they say.
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

// opening matches segments of TCP that open a connection, or with CmpOpNeq all others.
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

// toLocal matches what is for this node itself.
func toLocal() *match {
	return &match{"fib daddr . mark type local", []expr.Any{
		&expr.Fib{Register: 1, ResultADDRTYPE: true, FlagDADDR: true, FlagMARK: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1,
			Data: binaryutil.NativeEndian.PutUint32(typeLocal)},
	}}
}
