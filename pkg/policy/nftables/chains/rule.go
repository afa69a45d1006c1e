package chains

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nfnl"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables/sets"
)

// Rule is an encoded rule and its text, which is the rule's comment in the kernel.
type Rule struct {
	Text  string
	Exprs []byte
}

// match is a condition and its text. The zero value matches everything.
type match Rule

// and returns a match for packets that match both.
func (m match) and(n match) match {
	return match{strings.TrimSpace(m.Text + " " + n.Text), slices.Concat(m.Exprs, n.Exprs)}
}

// verdict returns a rule with a verdict for packets that match.
func (m match) verdict(kind expr.VerdictKind, to string) Rule {
	words := map[expr.VerdictKind]string{expr.VerdictReturn: "return", expr.VerdictAccept: "accept",
		expr.VerdictGoto: "goto " + to, expr.VerdictJump: "jump " + to}
	text := strings.TrimSpace(m.Text + " " + words[kind])
	return Rule{text, slices.Concat(m.Exprs, encode(&expr.Verdict{Kind: kind, Chain: to}))}
}

// drop returns a rule that drops in the chain of a reason (logrule.go).
func drop(reason string) Rule { return match{}.verdict(expr.VerdictGoto, reason) }

// countDrop returns a rule that counts and drops.
func countDrop(counter string) Rule {
	return Rule{"counter " + counter + " drop", encode(
		&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: counter},
		&expr.Verdict{Kind: expr.VerdictDrop},
	)}
}

// dropMidstream returns a rule that drops TCP segments that neither open a connection nor belong to
// a known one. Otherwise the next segment of the server would open a revoked connection again, in
// the server's direction.
//
// Segments that another program exempts from conntrack (notrack) never belong to a known
// connection. Each of them is judged by address and port, so this rule leaves them out. NodeLocal
// DNSCache exempts the segments of its own address in this way.
func dropMidstream() Rule {
	const flags, opens, syn = 13, 0x17, 0x02 // fin, syn, rst, ack; offset of RFC 9293 section 3.1
	d := drop(midstream)
	text := "meta l4proto tcp tcp flags & (fin | syn | rst | ack) != syn ct state != untracked "
	return Rule{text + d.Text, append(encode(
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: firstRegister},
		&expr.Cmp{Op: expr.CmpOpEq, Register: firstRegister, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Payload{DestRegister: firstRegister, Base: expr.PayloadBaseTransportHeader,
			Offset: flags, Len: 1},
		&expr.Bitwise{SourceRegister: firstRegister, DestRegister: firstRegister, Len: 1,
			Mask: []byte{opens}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: firstRegister, Data: []byte{syn}},
		// This check comes last, so that only segments that do not open a connection pay for it.
		&expr.Ct{Key: expr.CtKeySTATE, Register: firstRegister},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: firstRegister,
			Data: binaryutil.NativeEndian.PutUint32(stateUntracked)},
	), d.Exprs...)}
}

// family has what the headers of one address family need.
type family struct {
	sets.Family
	proto        byte
	saddr, daddr uint32 // offsets in the header
	quoted       uint32 // offset in an ICMP error of the inner packet's daddr
	icmp         byte   // the protocol
	// errors are the types of ICMP errors (RFC 792; RFC 4443, section 2.1). Some are obsolete.
	errors []icmpTypes
}

// icmpTypes are the first and the last of a range of types.
type icmpTypes [2]byte

var families = []family{
	{sets.Families[0], unix.NFPROTO_IPV4, 12, 16, 8 + 16, unix.IPPROTO_ICMP,
		[]icmpTypes{{3, 5}, {11, 12}}},
	{sets.Families[1], unix.NFPROTO_IPV6, 8, 24, 8 + 24, unix.IPPROTO_ICMPV6,
		[]icmpTypes{{0, 127}}},
}

// Registers of a lookup. A concatenated key begins in firstRegister and continues in the next
// registers of 4 bytes each: unix.NFT_REG32_00 is 8, and the same memory as unix.NFT_REG_1.
const firstRegister = 8

// is returns a match for packets of the family. Its text is empty: the field that follows names it.
func (f family) is() match {
	return match{Exprs: encode(
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: firstRegister},
		&expr.Cmp{Op: expr.CmpOpEq, Register: firstRegister, Data: []byte{f.proto}},
	)}
}

func (f family) load(offset, register uint32) expr.Any {
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader,
		Offset: offset, Len: f.Size}
}

// field returns the name and the offset of the address of a pod's own end, or of its peer, in
// packets that open a connection in the direction.
func (f family) field(d policy.Direction, own bool) (name string, offset uint32) {
	if (d == policy.Egress) == own {
		return f.Name + " saddr", f.saddr
	}
	return f.Name + " daddr", f.daddr
}

// inSet matches packets with an address in a set. The packets must be of the family.
func (f family) inSet(d policy.Direction, own bool, set string) match {
	name, offset := f.field(d, own)
	return match{name + " @" + set, encode(f.load(offset, firstRegister),
		&expr.Lookup{SourceRegister: firstRegister, SetName: set})}
}

// toNamed matches packets of the family to an address, protocol and port in a set.
func (f family) toNamed(set string) match {
	proto := firstRegister + f.Size/4
	return match{f.Name + " daddr . meta l4proto . th dport @" + set, encode(
		f.load(f.daddr, firstRegister),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: proto},
		loadPort(proto+1),
		&expr.Lookup{SourceRegister: firstRegister, SetName: set})}
}

// toItself matches packets of the family that a pod sends to itself through a service.
func (f family) toItself() match {
	return match{f.Name + " saddr . " + f.Name + " daddr @" + f.Self, encode(
		f.load(f.saddr, firstRegister), f.load(f.daddr, firstRegister+f.Size/4),
		&expr.Lookup{SourceRegister: firstRegister, SetName: f.Self})}
}

// loadPort loads the destination port of TCP, UDP and SCTP.
func loadPort(register uint32) expr.Any {
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: 2,
		Len: 2}
}

// toPortsOf matches packets to a protocol and port in a set.
func toPortsOf(set string) match {
	return match{"meta l4proto . th dport @" + set, encode(
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: firstRegister},
		loadPort(firstRegister+1),
		&expr.Lookup{SourceRegister: firstRegister, SetName: set})}
}

// toPorts matches packets to the ports.
func toPorts(i policy.Interval) match {
	if i.Proto == 0 {
		return match{}
	}
	m := match{"meta l4proto " + i.Proto.String(), encode(
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: firstRegister},
		&expr.Cmp{Op: expr.CmpOpEq, Register: firstRegister, Data: []byte{byte(i.Proto)}},
	)}
	first, last := binaryutil.BigEndian.PutUint16(i.First), binaryutil.BigEndian.PutUint16(i.Last)
	load := loadPort(firstRegister)
	switch {
	case i.First == 0 && i.Last == 65535:
		return m
	case i.First == i.Last:
		return m.and(match{fmt.Sprintf("th dport %d", i.First), encode(load,
			&expr.Cmp{Op: expr.CmpOpEq, Register: firstRegister, Data: first})})
	default:
		return m.and(match{fmt.Sprintf("th dport %d-%d", i.First, i.Last), encode(load,
			&expr.Range{Op: expr.CmpOpEq, Register: firstRegister, FromData: first, ToData: last})})
	}
}

// Bits of ct state (NF_CT_STATE_BIT).
const stateInvalid, stateEstablished, stateRelated, stateUntracked = 1, 1 << 1, 1 << 2, 1 << 6

// known matches packets of established connections, whose first packet was judged.
func known() match { return inState("established", stateEstablished) }

// related matches packets that the kernel relates to known connections: ICMP errors about them, and
// connections that a helper of conntrack expects.
func related() match { return inState("related", stateRelated) }

// knownOrRelated matches packets that known or related matches.
func knownOrRelated() match {
	return inState("established,related", stateEstablished|stateRelated)
}

// notKnown matches packets that neither belong nor relate to a connection that conntrack knows, and
// begin none. ICMP errors about connections of the fast path are among them.
func notKnown() match { return inState("invalid,untracked", stateInvalid|stateUntracked) }

func inState(name string, bits uint32) match {
	return match{"ct state " + name, encode(
		&expr.Ct{Key: expr.CtKeySTATE, Register: firstRegister},
		&expr.Bitwise{SourceRegister: firstRegister, DestRegister: firstRegister, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: firstRegister, Data: make([]byte, 4)},
	)}
}

// byHostProcess matches packets of the node's own processes, which have no input link.
func byHostProcess() match {
	return match{"iif 0", encode(
		&expr.Meta{Key: expr.MetaKeyIIF, Register: firstRegister},
		&expr.Cmp{Op: expr.CmpOpEq, Register: firstRegister, Data: make([]byte, 4)},
	)}
}

// isError matches ICMP errors of the family.
func (f family) isError(types icmpTypes) match {
	text := fmt.Sprintf("meta nfproto %s meta l4proto %d icmp type %d-%d", f.Name, f.icmp, types[0],
		types[1])
	return match{text, slices.Concat(f.is().Exprs, encode(
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: firstRegister},
		&expr.Cmp{Op: expr.CmpOpEq, Register: firstRegister, Data: []byte{f.icmp}},
		&expr.Payload{DestRegister: firstRegister, Base: expr.PayloadBaseTransportHeader, Len: 1},
		&expr.Range{Op: expr.CmpOpEq, Register: firstRegister, FromData: types[:1],
			ToData: types[1:]},
	))}
}

// toNode matches packets to this node itself. Only at input do packets have no output link.
func toNode() match {
	return match{"oif 0", encode(
		&expr.Meta{Key: expr.MetaKeyOIF, Register: firstRegister},
		&expr.Cmp{Op: expr.CmpOpEq, Register: firstRegister, Data: make([]byte, 4)},
	)}
}

// fromPods matches packets that come in by a pod's link. With CmpOpNeq it matches all others.
func fromPods(op expr.CmpOp) match {
	return byGroup("iifgroup", expr.MetaKeyIIFGROUP, op, abi.PodGroup)
}

// toPods matches packets that go out by a pod's link. With CmpOpNeq it matches all others.
func toPods(op expr.CmpOp) match {
	return byGroup("oifgroup", expr.MetaKeyOIFGROUP, op, abi.PodGroup)
}

// fromTunnel matches packets that come out of a tunnel.
func fromTunnel() match {
	return byGroup("iifgroup", expr.MetaKeyIIFGROUP, expr.CmpOpEq, abi.TunnelGroup)
}

func byGroup(name string, key expr.MetaKey, op expr.CmpOp, group uint32) match {
	if op == expr.CmpOpNeq {
		name += " !="
	}
	return match{fmt.Sprintf("%s %#x", name, group), encode(
		&expr.Meta{Key: key, Register: firstRegister},
		&expr.Cmp{Op: op, Register: firstRegister,
			Data: binaryutil.NativeEndian.PutUint32(group)},
	)}
}

// encode returns expressions in the encoding of a rule's message. It panics if the library cannot
// encode an expression of this package.
func encode(exprs ...expr.Any) (out []byte) {
	for _, e := range exprs {
		b, err := expr.Marshal(unix.NFPROTO_INET, e)
		if err != nil {
			panic(fmt.Sprintf("expression %T: %v", e, err))
		}
		out = nfnl.AppendAttribute(out, unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, b)
	}
	return out
}
