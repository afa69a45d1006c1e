package nft

import (
	"encoding/binary"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Rule holds the expressions of a rule, or of a part of one: first conditions, then actions. Parts
// use register 1.
type Rule = []expr.Any

// Comparisons.
const (
	Eq  = expr.CmpOpEq
	Neq = expr.CmpOpNeq
)

// All returns a rule that matches packets that all parts match.
func All(parts ...Rule) Rule { return slices.Concat(parts...) }

// Native returns a number in the byte order of the host, which marks, groups and states have.
func Native(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// Meta compares a property of the packet.
func Meta(key expr.MetaKey, op expr.CmpOp, value []byte) Rule {
	return Rule{&expr.Meta{Key: key, Register: 1}, compare(op, value)}
}

func compare(op expr.CmpOp, value []byte) expr.Any {
	return &expr.Cmp{Op: op, Register: 1, Data: value}
}

// InGroup compares the group of the link by which a packet came in; 0 if there is none.
func InGroup(op expr.CmpOp, group uint32) Rule {
	return Meta(expr.MetaKeyIIFGROUP, op, Native(group))
}

// OutGroup compares the group of the link by which a packet goes out.
func OutGroup(op expr.CmpOp, group uint32) Rule {
	return Meta(expr.MetaKeyOIFGROUP, op, Native(group))
}

// Proto compares the protocol of the transport header.
func Proto(op expr.CmpOp, proto byte) Rule { return Meta(expr.MetaKeyL4PROTO, op, []byte{proto}) }

// Family matches packets of NFPROTO_IPV4 or NFPROTO_IPV6.
func Family(family byte) Rule { return Meta(expr.MetaKeyNFPROTO, Eq, []byte{family}) }

// Bits loads a value into register 1 by load, and compares its bits of mask.
func Bits(load expr.Any, mask uint32, op expr.CmpOp, value uint32) Rule {
	return Rule{load, bitwise(mask, 0), compare(op, Native(value))}
}

func bitwise(mask, xor uint32) expr.Any {
	return &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: Native(mask),
		Xor: Native(xor)}
}

// Mark compares bits of the packet's mark.
func Mark(mask uint32, op expr.CmpOp, value uint32) Rule {
	return Bits(&expr.Meta{Key: expr.MetaKeyMARK, Register: 1}, mask, op, value)
}

// SetMark clears and sets bits of the packet's mark.
func SetMark(clear, set uint32) Rule {
	return Rule{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		bitwise(^(clear | set), set),
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: 1},
	}
}

// Status compares bits of the status of the packet's connection (IPS_… in
// include/uapi/linux/netfilter/nf_conntrack_common.h) with none.
func Status(mask uint32, op expr.CmpOp) Rule {
	return Bits(&expr.Ct{Key: expr.CtKeySTATUS, Register: 1}, mask, op, 0)
}

// Direction compares the direction of a packet of a connection, IP_CT_DIR_….
func Direction(op expr.CmpOp, direction byte) Rule {
	return Rule{&expr.Ct{Key: expr.CtKeyDIRECTION, Register: 1}, compare(op, []byte{direction})}
}

// Headers that Bytes and Load read.
const (
	Network   = expr.PayloadBaseNetworkHeader
	Transport = expr.PayloadBaseTransportHeader
)

// Load loads a field of a header into register 1.
func Load(header expr.PayloadBase, offset, size uint32) expr.Any {
	return &expr.Payload{DestRegister: 1, Base: header, Offset: offset, Len: size}
}

// Bytes matches packets with these bytes at the offset of a header.
func Bytes(header expr.PayloadBase, offset uint32, want ...byte) Rule {
	return Rule{Load(header, offset, uint32(len(want))), compare(Eq, want)}
}

// Field is a field of the network header of one family.
type Field struct {
	Family       byte
	Offset, Size uint32
}

// Addresses in headers, RFC 791 section 3.1 and RFC 8200 section 3.
var (
	Source4      = Field{unix.NFPROTO_IPV4, 12, 4}
	Destination4 = Field{unix.NFPROTO_IPV4, 16, 4}
	Source6      = Field{unix.NFPROTO_IPV6, 8, 16}
	Destination6 = Field{unix.NFPROTO_IPV6, 24, 16}
)

// Load matches the family and loads the field into register 1.
func (f Field) Load() Rule { return append(Family(f.Family), Load(Network, f.Offset, f.Size)) }

// Begins matches packets of the family in whose field these bytes are the first.
func (f Field) Begins(with ...byte) Rule {
	return All(Family(f.Family), Bytes(Network, f.Offset, with...))
}

// In matches packets of the family with the field in a set.
func (f Field) In(set string) Rule { return append(f.Load(), In(set)) }

// NotIn matches packets of the family with the field in no element of a set.
func (f Field) NotIn(set string) Rule { return append(f.Load(), NotIn(set)) }

// In matches if register 1 is in a set.
func In(set string) expr.Any { return &expr.Lookup{SourceRegister: 1, SetName: set} }

// NotIn matches if register 1 is not in a set.
func NotIn(set string) expr.Any {
	return &expr.Lookup{SourceRegister: 1, SetName: set, Invert: true}
}

// Value replaces register 1 by its value in a map. It matches if the map has one.
func Value(set string) expr.Any {
	return &expr.Lookup{SourceRegister: 1, DestRegister: 1, IsDestRegSet: true, SetName: set}
}

// SourceNAT translates the source of a packet of the family to the address in register 1. The
// kernel has RegAddrMin for a missing RegAddrMax.
func SourceNAT(family byte) expr.Any {
	return &expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(family), RegAddrMin: 1,
		RegAddrMax: 1}
}

// Count counts on a counter of the table.
func Count(counter string) Rule {
	return Rule{&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: counter}}
}

// Verdicts that rules end with.
var (
	Return = Rule{&expr.Verdict{Kind: expr.VerdictReturn}}
	Drop   = Rule{&expr.Verdict{Kind: expr.VerdictDrop}}
	// Reset drops a segment of TCP and answers it with a reset.
	Reset = Rule{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}
)

// CountDrop counts on a counter of the table and drops.
func CountDrop(counter string) Rule { return All(Count(counter), Drop) }

// Goto continues with a chain and does not return.
func Goto(chain string) Rule { return Rule{&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}} }

// Jump continues with a chain, and afterwards behind this rule.
func Jump(chain string) Rule { return Rule{&expr.Verdict{Kind: expr.VerdictJump, Chain: chain}} }
