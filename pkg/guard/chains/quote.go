package chains

import (
	"encoding/binary"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// icmp is the layout of an ICMP error (RFC 792, RFC 4443): the quoted packet follows after eight
// bytes.
type icmp struct {
	chain         string
	nfproto, l4   byte
	types         [][2]byte // ranges of the types of errors
	src, dst, len uint32    // addresses of the quoted packet
	proto, ports  uint32    // its protocol, and its ports when it has no options
	set           string
}

var icmps = []icmp{
	{chainQuotes4, unix.NFPROTO_IPV4, unix.IPPROTO_ICMP, [][2]byte{{3, 5}, {11, 12}},
		8 + 12, 8 + 16, 4, 8 + 9, 8 + 20, setRanges + "4"},
	{chainQuotes6, unix.NFPROTO_IPV6, unix.IPPROTO_ICMPV6, [][2]byte{{0, 127}}, 8 + 8,
		8 + 24, 16, 8 + 6, 8 + 40, setRanges + "6"},
}

// dropQuotes drops ICMP errors of this protocol that quote packets of the cluster, or probes.
func (i icmp) dropQuotes() []nft.Rule {
	port := binary.BigEndian.AppendUint16(nil, abi.ProbePort)
	var rules []nft.Rule
	for _, t := range i.types {
		dropIf := func(quotes ...nft.Rule) {
			rules = append(rules, nft.All(typed(t), nft.All(quotes...), Drop(QuotedInError)))
		}
		for _, addr := range []uint32{i.src, i.dst} {
			dropIf(nft.Rule{nft.Load(nft.Transport, addr, i.len), nft.In(i.set)})
		}
		for _, at := range []uint32{i.ports, i.ports + 2} {
			dropIf(nft.Bytes(nft.Transport, i.proto, unix.IPPROTO_UDP),
				nft.Bytes(nft.Transport, at, port...))
		}
	}
	return rules
}

// match matches the protocol.
func (i icmp) match() nft.Rule { return nft.All(nft.Proto(nft.Eq, i.l4), nft.Family(i.nfproto)) }

// typed matches ICMP messages with a type from t[0] to t[1].
func typed(t [2]byte) nft.Rule {
	return nft.Rule{
		nft.Load(nft.Transport, 0, 1),
		&expr.Range{Op: nft.Eq, Register: 1, FromData: []byte{t[0]}, ToData: []byte{t[1]}},
	}
}
