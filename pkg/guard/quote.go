package guard

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

// icmp is the layout of an ICMP error (RFC 792, RFC 4443): the quoted packet follows after eight
// bytes.
type icmp struct {
	name, chain   string
	nfproto, l4   byte
	types         [][2]byte // of errors, from and to
	src, dst, len uint32    // addresses of the quoted packet
	proto, ports  uint32    // its protocol, and its ports when it has no options
	set           string
}

var icmps = []icmp{
	{"icmp", chainQuotes4, unix.NFPROTO_IPV4, unix.IPPROTO_ICMP, [][2]byte{{3, 5}, {11, 12}},
		8 + 12, 8 + 16, 4, 8 + 9, 8 + 20, setRanges4},
	{"icmpv6", chainQuotes6, unix.NFPROTO_IPV6, unix.IPPROTO_ICMPV6, [][2]byte{{0, 127}}, 8 + 8,
		8 + 24, 16, 8 + 6, 8 + 40, setRanges6},
}

// dropQuotes drops ICMP errors that quote packets of the cluster, or probes, among those that match
// matches.
func (i icmp) dropQuotes() []rule {
	var rules []rule
	for _, t := range i.types {
		errors := typed(t)
		text := fmt.Sprintf("%s type %d-%d quotes", i.name, t[0], t[1])
		for _, f := range []struct {
			name   string
			offset uint32
		}{{"saddr", i.src}, {"daddr", i.dst}} {
			rules = append(rules, counted(fmt.Sprintf("%s %s @%s", text, f.name, i.set), errors,
				&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader,
					Offset: f.offset, Len: i.len},
				&expr.Lookup{SourceRegister: 1, SetName: i.set}))
		}

		for _, f := range []struct {
			name   string
			offset uint32
		}{{"sport", i.ports}, {"dport", i.ports + 2}} {
			rules = append(rules, counted(fmt.Sprintf("%s udp %s %d", text, f.name,
				abi.ProbePort), errors,
				&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader,
					Offset: i.proto, Len: 1},
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_UDP}},
				&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader,
					Offset: f.offset, Len: 2},
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1,
					Data: binary.BigEndian.AppendUint16(nil, abi.ProbePort)}))
		}
	}

	return rules
}

// match matches the protocol.
func (i icmp) match() *match {
	return &match{"meta l4proto " + i.name, []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{i.l4}},
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{i.nfproto}},
	}}
}

// typed matches ICMP messages with a type in t.
func typed(t [2]byte) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1},
		&expr.Range{Op: expr.CmpOpEq, Register: 1, FromData: []byte{t[0]}, ToData: []byte{t[1]}},
	}
}

// counted drops and counts packets that match both lists.
func counted(text string, before []expr.Any, match ...expr.Any) rule {
	return rule{text + " counter " + quotedInError + " drop",
		slices.Concat(before, match, []expr.Any{
			&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: quotedInError},
			&expr.Verdict{Kind: expr.VerdictDrop},
		})}
}
