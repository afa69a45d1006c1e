package chains

import "github.com/kubeveil/kubeveil/internal/nft"

// On a link with route_localnet the kernel accepts packets for 127.0.0.0/8 from outside. The
// portmap plugin sets it on the links of pods with host ports, kube-proxy on all links. Programs
// that listen on loopback expect no remote client (CVE-2020-8558). IPv6 needs no rule: ipv6_rcv
// (net/ipv6/ip6_input.c) accepts ::1 from lo alone.
//
// The rule runs before NAT. Replies to a host process that used a host port are translated back to
// 127.0.0.1 only later, and so pass.

// loopback4 is the first byte of IPv4 loopback addresses (RFC 1122, section 3.2.1.3).
const loopback4 = 127

// dropLoopback drops packets of pods and tunnels to the node's loopback addresses.
func dropLoopback() nft.Rule {
	return nft.All(fromInside(), nft.Destination4.Begins(loopback4), drop(ToLoopback))
}
