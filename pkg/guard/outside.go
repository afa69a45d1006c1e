package guard

import (
	"fmt"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// A peer decides what it sends into its tunnel. Without a rule, a compromised node could reach this
// node's networks with this node's address, past lists of allowed addresses:
//
//	peer: 198.51.100.9 into veil0 ═► this node: routed as a pod's, masqueraded ─► 198.51.100.9
//
// Three kinds of packets out of a tunnel may leave the cluster. Packets of a service flow
// (ServiceMark) have passed before. A NodePort with an endpoint outside has DNAT in its connection.
// A reply is a reply to connection tracking. Untracked packets are none of these.

// dropOutside drops packets that came out of a tunnel and leave the cluster, except replies and
// what this node translated.
func dropOutside() []rule {
	reply := &match{"ct direction reply", []expr.Any{
		&expr.Ct{Key: expr.CtKeyDIRECTION, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{ctReply}},
	}}
	dnat := &match{"ct status dnat", []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATUS, Register: 1},
		masked(ctDstNAT),
		compared(expr.CmpOpNeq, 0),
	}}
	return []rule{
		ruleOf(reply, expr.VerdictReturn, ""),
		ruleOf(dnat, expr.VerdictReturn, ""),
		{fmt.Sprintf("counter %s drop", tunnelToOutside), []expr.Any{
			&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: tunnelToOutside},
			&expr.Verdict{Kind: expr.VerdictDrop},
		}},
	}
}
