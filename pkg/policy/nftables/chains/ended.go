package chains

import (
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Conntrack does not require a handshake for flows of UDP and SCTP. When such a flow is revoked, an
// answer that is on its way would open it again from the server's end, and all later packets would
// belong to a known connection. So the chain answers drops first packets with the addresses and
// ports of such an answer. It follows the rule for known connections: if the client may open the
// flow again, its answers pass. Answers of the node's own processes pass the chain processes
// instead.

// Chains that post sends packets to.
const (
	processes = "processes"
	answers   = "answers"
)

// withoutHandshake matches packets that may be answers to an ended flow. It leaves out TCP, whose
// answers dropMidstream drops.
func withoutHandshake() match {
	return match{"meta l4proto != tcp", encode(
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: firstRegister},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: firstRegister, Data: []byte{unix.IPPROTO_TCP}},
	)}
}

// dropEnded returns the rules that drop answers to ended flows.
func dropEnded() (rules []Rule) {
	for _, f := range families {
		proto := firstRegister + 2*f.Size/4
		ends := match{f.Name + " saddr . " + f.Name + " daddr . meta l4proto . th sport . th dport @" +
			f.Ended, encode(
			f.load(f.saddr, firstRegister), f.load(f.daddr, firstRegister+f.Size/4),
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: proto},
			&expr.Payload{DestRegister: proto + 1, Base: expr.PayloadBaseTransportHeader, Len: 2},
			loadPort(proto+2),
			&expr.Lookup{SourceRegister: firstRegister, SetName: f.Ended})}
		rules = append(rules, Rule(f.is().and(ends).and(match(drop(midstream)))))
	}
	return rules
}
