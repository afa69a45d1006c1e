package tables

import (
	"encoding/binary"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// Outer packets are never fragmented. A path that is too narrow drops them, which the path MTU
// prober detects. ICMP errors have no influence, because any host can forge them. veil-wg gets this
// behaviour by options of its sockets. The kernel's WireGuard has no such option
// (drivers/net/wireguard/socket.c): over IPv4 it sends without DF, and over both families it
// fragments to the path MTU that an ICMP error claims. So nftables rules do it:
//
//	WireGuard ─► LOCAL_OUT: DF ─► POST_ROUTING ─► larger than the route's MTU? ─► link
//	ICMP "too big" about what this node's tunnel sent ─► LOCAL_IN: drop
//
// The rule that sets DF is at LOCAL_OUT, so that forwarded packets do not pay for it. The check
// against the MTU, ip_finish_output, comes later (net/ipv4/ip_output.c). iptunnel_xmit clears the
// flag that lets the kernel ignore DF, so a packet larger than the link's MTU is dropped. Over IPv6
// the kernel may still fragment packets larger than the route's MTU. But without ICMP errors the
// route's MTU is never below the link's MTU, from which the tunnel's MTU is derived.

// last is a priority after all standard priorities, so that no other chain changes the packet
// later.
const last = 120

// Offsets and values, RFC 791, 792, 4443 and 8200.
const (
	fragOffset, fragChecksum = 6, 10
	dontFragment             = 0x4000
	icmpQuote                = 8 // offset of the quoted packet in an ICMP or ICMPv6 error
	quotedHeader4            = 0x45
	quotedProto4, header4    = 9, 20
	quotedProto6, header6    = 6, 40
)

// Outer returns the table that sets DF in outer packets, and drops ICMP errors about the size of
// packets from this UDP port.
func Outer(port int) *nft.Table {
	return &nft.Table{Name: abi.NFTOuterTable, Chains: []nft.Chain{
		nft.Base("output", nftables.ChainTypeFilter, nftables.ChainHookOutput, last, setDF()),
		nft.Base("input", nftables.ChainTypeFilter, nftables.ChainHookInput,
			*nftables.ChainPriorityFilter, dropTooBig4(port), dropTooBig6(port)),
	}}
}

// setDF returns the rule that sets DF. It does not change fragments and packets that have DF:
//
//	meta mark & TunnelMark == TunnelMark meta l4proto udp ip frag-off 0 ip frag-off set 0x4000
func setDF() nft.Rule {
	return nft.All(marked(abi.TunnelMark), ofProto(unix.NFPROTO_IPV4, unix.IPPROTO_UDP),
		nft.Bytes(nft.Network, fragOffset, 0, 0), nft.Rule{
			&expr.Immediate{Register: 1, Data: binary.BigEndian.AppendUint16(nil, dontFragment)},
			&expr.Payload{
				OperationType: expr.PayloadWrite, SourceRegister: 1, Base: nft.Network,
				Offset: fragOffset, Len: 2, CsumType: expr.CsumTypeInet, CsumOffset: fragChecksum,
			}})
}

// dropTooBig4 drops ICMP errors "fragmentation needed" that quote a UDP packet from port.
func dropTooBig4(port int) nft.Rule {
	return nft.All(ofProto(unix.NFPROTO_IPV4, unix.IPPROTO_ICMP),
		nft.Bytes(nft.Transport, 0, 3, 4),
		nft.Bytes(nft.Transport, icmpQuote, quotedHeader4),
		nft.Bytes(nft.Transport, icmpQuote+quotedProto4, unix.IPPROTO_UDP),
		nft.Bytes(nft.Transport, icmpQuote+header4, byte(port>>8), byte(port)), nft.Drop)
}

// dropTooBig6 drops ICMPv6 errors "packet too big" that quote a UDP packet from port.
func dropTooBig6(port int) nft.Rule {
	return nft.All(ofProto(unix.NFPROTO_IPV6, unix.IPPROTO_ICMPV6),
		nft.Bytes(nft.Transport, 0, 2),
		nft.Bytes(nft.Transport, icmpQuote+quotedProto6, unix.IPPROTO_UDP),
		nft.Bytes(nft.Transport, icmpQuote+header6, byte(port>>8), byte(port)), nft.Drop)
}

// ofProto matches a family and a transport protocol.
func ofProto(family, proto byte) nft.Rule {
	return nft.All(nft.Family(family), nft.Proto(nft.Eq, proto))
}
