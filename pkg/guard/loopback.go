package guard

import (
	"fmt"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Where a link has route_localnet the kernel takes packets for 127.0.0.0/8 that come in by it: the
// portmap plugin sets it on the links of pods with host ports, kube-proxy on all links. Programs
// that listen on loopback only expect no client from elsewhere (CVE-2020-8558). IPv6 needs no rule:
// ipv6_rcv (net/ipv6/ip6_input.c) takes ::1 from lo alone.
//
// The rule is before NAT: replies that connection tracking turns back to 127.0.0.1, of a host
// process that used a host port there, have another destination yet.

// toLoopback is the reason of bpf/reasons.go.
const toLoopback = "to_loopback"

// loopback4 is the first byte of IPv4 loopback addresses (RFC 1122, section 3.2.1.3).
const loopback4 = 127

// dropLoopback drops what pods and tunnels send to the node's loopback addresses.
func dropLoopback() rule {
	from := fromInside()
	daddr := fields["ip daddr"]
	return rule{fmt.Sprintf("%s ip daddr 127.0.0.0/8 counter %s drop", from.text, toLoopback),
		append(from.exprs,
			&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{daddr.proto}},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader,
				Offset: daddr.offset,
				Len:    1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{loopback4}},
			&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: toLoopback},
			&expr.Verdict{Kind: expr.VerdictDrop},
		)}
}
