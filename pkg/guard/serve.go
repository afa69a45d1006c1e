package guard

import (
	"fmt"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

// A client outside speaks to a service: at the link its packet has the service's address, in this
// host the backend's, and what answers it has the backend's until it leaves. The programs at links
// that change the one into the other mark such packets, both ways:
//
//	client > service ─► NIC: guard, then translated and marked ─► here: client > backend ─► pod or tunnel
//	client < service ◄─ NIC: translated, then guard ◄──────────── here: client < backend, marked ◄─ pod or tunnel
//
// So with that mark a backend's address is no reason to drop what comes in by a link, nor one as
// source of what goes out: the program at the link judges what the network sees. No other host can
// set a mark, and what crosses from a pod's network namespace loses it. A pod's packet still goes
// to no backend but by a tunnel.

// A pod's packet to a service may stay untranslated: a segment of a forgotten flow, a fragment, a
// lost service table. One to a service address is dropped as in Ranges. One to a LoadBalancer IP
// would leave in clear, although a backend may be inside. So a pod's packets to such addresses are
// dropped, except replies: a load balancer that does not keep its clients' addresses connects from
// its own, which is the service's.
//
// Connection tracking tells replies apart and marks them for the programs at links, which cannot.
// Routes cannot tell the two apart. A packet that opens such a connection is refused with a reset
// before.

// markAnswers marks and accepts pods' replies to addresses of services. A packet without a
// connection, or of an unknown one, continues to the next rule.
func markAnswers() (rules []rule) {
	for _, f := range families {
		text := fmt.Sprintf("ct direction reply %s @%s mark set mark | %#x return", f.daddr, f.vips,
			abi.ServiceMark)
		exprs := []expr.Any{
			&expr.Ct{Key: expr.CtKeyDIRECTION, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{ctReply}},
		}
		exprs = append(append(exprs, load(f.daddr)...),
			&expr.Lookup{SourceRegister: 1, SetName: f.vips})
		exprs = append(append(exprs, setMark(abi.ServiceMark)...),
			&expr.Verdict{Kind: expr.VerdictReturn})
		rules = append(rules, rule{text, exprs})
	}
	return rules
}

// dropUntranslated drops pods' packets to addresses of services; translated ones and replies have
// passed before.
func dropUntranslated() (rules []rule) {
	for _, f := range families {
		rules = append(rules, drop(f.daddr, f.vips, untranslated, nil))
	}
	return rules
}

// refuseUntranslated refuses a packet that would open such a connection.
func refuseUntranslated() (rules []rule) {
	for _, f := range families {
		exprs := append(unserved().exprs, load(f.daddr)...)
		exprs = append(exprs, &expr.Lookup{SourceRegister: 1, SetName: f.vips},
			&expr.Reject{Type: unix.NFT_REJECT_TCP_RST})
		rules = append(rules, rule{fmt.Sprintf("%s %s @%s reject with tcp reset", unserved().text,
			f.daddr, f.vips), exprs})
	}
	return rules
}

// unserved matches packets that belong to no service flow.
func unserved() *match {
	return &match{fmt.Sprintf("mark & %#x == 0", abi.ServiceMark), lacksMark(abi.ServiceMark)}
}

// passServed accepts packets of a service flow.
func passServed() rule {
	return ruleOf(&match{fmt.Sprintf("mark %#x", abi.ServiceMark), hasMark(abi.ServiceMark)},
		expr.VerdictReturn, "")
}
