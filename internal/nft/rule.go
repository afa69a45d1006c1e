package nft

import (
	"encoding/binary"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Rule holds the expressions of a rule or of a part of a rule, conditions before actions. The
// functions of this package use register 1.
type Rule = []expr.Any

// Comparisons.
const (
	Eq  = expr.CmpOpEq
	Neq = expr.CmpOpNeq
)

// All returns a rule of all parts. It matches a packet if every part matches.
func All(parts ...Rule) Rule { return slices.Concat(parts...) }

// Native returns n in the byte order of the host, which the kernel uses for marks, groups and
// states.
func Native(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// Meta compares a meta property of the packet with value.
func Meta(key expr.MetaKey, op expr.CmpOp, value []byte) Rule {
	return Rule{&expr.Meta{Key: key, Register: 1}, compare(op, value)}
}

func compare(op expr.CmpOp, value []byte) expr.Any {
	return &expr.Cmp{Op: op, Register: 1, Data: value}
}

// InGroup compares the group of the link on which a packet came in. Without such a link, the group
// is 0.
func InGroup(op expr.CmpOp, group uint32) Rule {
	return Meta(expr.MetaKeyIIFGROUP, op, Native(group))
}

// OutGroup compares the group of the link on which a packet goes out.
func OutGroup(op expr.CmpOp, group uint32) Rule {
	return Meta(expr.MetaKeyOIFGROUP, op, Native(group))
}

// Proto compares the protocol of the transport header.
func Proto(op expr.CmpOp, proto byte) Rule { return Meta(expr.MetaKeyL4PROTO, op, []byte{proto}) }

// Family matches packets of NFPROTO_IPV4 or NFPROTO_IPV6.
func Family(family byte) Rule { return Meta(expr.MetaKeyNFPROTO, Eq, []byte{family}) }

// Bits executes load, which loads a value into register 1, and compares the bits of the value that
// are in mask with value.
func Bits(load expr.Any, mask uint32, op expr.CmpOp, value uint32) Rule {
	return Rule{load, bitwise(mask, 0), compare(op, Native(value))}
}

func bitwise(mask, xor uint32) expr.Any {
	return &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: Native(mask),
		Xor: Native(xor)}
}

// Mark compares the bits of the packet's mark that are in mask with value.
func Mark(mask uint32, op expr.CmpOp, value uint32) Rule {
	return Bits(&expr.Meta{Key: expr.MetaKeyMARK, Register: 1}, mask, op, value)
}

// SetMark clears the bits clear of the packet's mark, and then sets the bits set.
func SetMark(clear, set uint32) Rule {
	return Rule{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		bitwise(^(clear | set), set),
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: 1},
	}
}

// Status compares the bits in mask of the status of the packet's connection with 0: Eq matches if
// no bit is set, Neq if at least one is. The bits are IPS_… in
// include/uapi/linux/netfilter/nf_conntrack_common.h.
func Status(mask uint32, op expr.CmpOp) Rule {
	return Bits(&expr.Ct{Key: expr.CtKeySTATUS, Register: 1}, mask, op, 0)
}

// Direction compares the direction of the packet in its connection with direction, which is
// IP_CT_DIR_….
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

// Bytes matches packets that have the bytes want at an offset in a header.
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

// Begins matches packets of the family whose field begins with these bytes.
func (f Field) Begins(with ...byte) Rule {
	return All(Family(f.Family), Bytes(Network, f.Offset, with...))
}

// In matches packets of the family whose field is in a set.
func (f Field) In(set string) Rule { return append(f.Load(), In(set)) }

// NotIn matches packets of the family whose field is not in a set.
func (f Field) NotIn(set string) Rule { return append(f.Load(), NotIn(set)) }

// In matches if register 1 is in a set.
func In(set string) expr.Any { return &expr.Lookup{SourceRegister: 1, SetName: set} }

// NotIn matches if register 1 is not in a set.
func NotIn(set string) expr.Any {
	return &expr.Lookup{SourceRegister: 1, SetName: set, Invert: true}
}

// Value looks up register 1 in a map. If the map has the key, it matches, and the value replaces
// the content of register 1.
func Value(set string) expr.Any {
	return &expr.Lookup{SourceRegister: 1, DestRegister: 1, IsDestRegSet: true, SetName: set}
}

// SourceNAT translates the source of a packet of the family to the address in register 1.
// RegAddrMax is set, because the kernel returns RegAddrMin for a missing RegAddrMax, and rules are
// compared.
func SourceNAT(family byte) expr.Any {
	return &expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(family), RegAddrMin: 1,
		RegAddrMax: 1}
}

// Count counts the packet on a counter of the table.
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

// CountDrop counts the packet on a counter of the table and drops it.
func CountDrop(counter string) Rule { return All(Count(counter), Drop) }

// Goto continues with a chain. After the chain, evaluation does not return to the next rule.
func Goto(chain string) Rule { return Rule{&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}} }

// Jump continues with a chain, and after the chain with the next rule.
func Jump(chain string) Rule { return Rule{&expr.Verdict{Kind: expr.VerdictJump, Chain: chain}} }
