package guard

import (
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Where a pod may not go its routes are unreachable, of which the kernel tells a
// sender by ICMP, and of that each address gets about one in two seconds: ip_error
// (net/ipv4/route.c) and icmp_send pay from the same purse. An application would wait for
// an answer most of the time. A reset is not rationed, so that is what opens a TCP
// connection gets; one that is established only has its packets dropped, since the route may
// come back.
//
//	pod ─► SYN ─► dstnat (-100): services are translated ─► refuse (0): no route? ─► reset

// typeLocal is RTN_LOCAL (include/uapi/linux/rtnetlink.h), which has no output link either.
const typeLocal = unix.RTN_LOCAL

// Flags of TCP, RFC 9293 section 3.1, and where they are.
const (
	tcpFlags                    = 13
	tcpFIN, tcpSYN, tcpRST      = 0x01, 0x02, 0x04
	tcpACK                      = 0x10
	tcpOpens               byte = tcpFIN | tcpSYN | tcpRST | tcpACK
)

// refuseChain answers what opens a connection of a pod's to where there is no route.
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
