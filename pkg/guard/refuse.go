package guard

import (
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
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
func refuseChain() chain {
	rules := []rule{
		ruleOf(notTCP(), expr.VerdictReturn, ""),
		ruleOf(notFromPod(), expr.VerdictReturn, ""),
		ruleOf(opening(expr.CmpOpNeq), expr.VerdictReturn, ""),
		restoreMark(), // the route is asked with it
		ruleOf(toLocal(), expr.VerdictReturn, ""),
		{"fib daddr . mark oif 0 reject with tcp reset", []expr.Any{
			&expr.Fib{Register: 1, ResultOIF: true, FlagDADDR: true, FlagMARK: true},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: make([]byte, 4)},
			&expr.Reject{Type: unix.NFT_REJECT_TCP_RST},
		}},
	}
	rules = append(rules, refuseUntranslated()...)
	return chain{"refuse", nftables.ChainTypeFilter, nftables.ChainHookPrerouting,
		nftables.ChainPriorityFilter, rules}
}
