package chains

import (
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// A pod's forbidden destinations have unreachable routes. The kernel reports those by ICMP, but to
// each address only about once in two seconds: ip_error (net/ipv4/route.c) and icmp_send share one
// budget. An application would wait most of the time. A reset has no rate limit, so a packet that
// opens a TCP connection gets one. Packets of an established connection are only dropped, because
// the route may come back.
//
//	pod ─► SYN ─► dstnat (-100): services are translated ─► refuse (0): no route? ─► reset

// typeLocal is RTN_LOCAL (include/uapi/linux/rtnetlink.h); such a route has no output link either.
const typeLocal = unix.RTN_LOCAL

// Flags of TCP, RFC 9293 section 3.1, and where they are.
const (
	tcpFlags                    = 13
	tcpFIN, tcpSYN, tcpRST      = 0x01, 0x02, 0x04
	tcpACK                      = 0x10
	tcpOpens               byte = tcpFIN | tcpSYN | tcpRST | tcpACK
)

// refuseChain answers a pod's packet that opens a connection without a route.
func refuseChain() nft.Chain {
	rules := []nft.Rule{
		nft.All(nft.Proto(nft.Neq, unix.IPPROTO_TCP), nft.Return),
		nft.All(nft.InGroup(nft.Neq, abi.PodGroup), nft.Return),
		nft.All(opening(nft.Neq), nft.Return),
		restoreMark(), // the route look-up uses it
		nft.All(toLocal(), nft.Return),
		nft.All(nft.Rule{
			&expr.Fib{Register: 1, ResultOIF: true, FlagDADDR: true, FlagMARK: true},
			&expr.Cmp{Register: 1, Data: nft.Native(0)},
		}, nft.Reset),
	}
	for _, f := range families { // Packets that would open a connection to a service Untranslated.
		rules = append(rules, nft.All(unserved(), f.daddr.In(f.vips), nft.Reset))
	}
	return nft.Base("refuse", nftables.ChainTypeFilter, nftables.ChainHookPrerouting,
		*nftables.ChainPriorityFilter, rules...)
}
