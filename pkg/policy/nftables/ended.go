package nftables

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nfnl"
	"github.com/kubeveil/kubeveil/pkg/policy"
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

// AnswersDropped is the time for which answers to an ended flow are dropped. It is the time for
// which conntrack remembers a UDP flow without an answer (nf_conntrack_udp_timeout).
const AnswersDropped = 30 * time.Second

// Answer holds the addresses, ports and protocol of answers to a flow of UDP or SCTP.
type Answer struct {
	Src, Dst netip.AddrPort
	Proto    policy.Proto
}

// DropAnswers makes the table drop these answers for AnswersDropped. They replace the answers of
// earlier calls, which are no longer dropped. c must be a connection of the table's network
// namespace. DropAnswers may run concurrently with the methods of PolicyTable.
func DropAnswers(c *nfnl.Conn, list []Answer) error {
	keys := make([][]string, len(families))
	for _, a := range list {
		i := indexOf(a.Src.Addr())
		keys[i] = append(keys[i], a.key())
	}
	var t transaction
	for i, f := range families {
		t.flushSet(ourTable.Name, f.ended)
		t.addElements(ourTable.Name, f.ended, keys[i])
	}
	if err := t.commit(c); err != nil {
		return fmt.Errorf("drop answers to revoked flows, in nftables table %s: %w", ourTable.Name, err)
	}
	return nil
}

func (a Answer) key() string {
	b := append(a.Src.Addr().AsSlice(), a.Dst.Addr().AsSlice()...)
	b = append(b, byte(a.Proto), 0, 0, 0)
	for _, p := range []uint16{a.Src.Port(), a.Dst.Port()} {
		b = append(b, byte(p>>8), byte(p), 0, 0)
	}
	return key(b)
}

// endedSet is the set of the answers that are dropped.
func (f family) endedSet() *set {
	ends, _ := nftables.ConcatSetType(f.addr, f.addr, nftables.TypeInetProto,
		nftables.TypeInetService, nftables.TypeInetService)
	return &set{key: ends, concat: true, elements: union{{}}, timeout: AnswersDropped}
}

// withoutHandshake matches packets that may be an Answer. It leaves out TCP, whose answers
// dropMidstream drops.
func withoutHandshake() match {
	return match{"meta l4proto != tcp", encode(
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: firstRegister},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: firstRegister, Data: []byte{unix.IPPROTO_TCP}},
	)}
}

// dropEnded returns the rules that drop answers to ended flows.
func dropEnded() (rules []rule) {
	for _, f := range families {
		proto := firstRegister + 2*f.size/4
		ends := match{f.name + " saddr . " + f.name + " daddr . meta l4proto . th sport . th dport @" +
			f.ended, encode(
			f.load(f.saddr, firstRegister), f.load(f.daddr, firstRegister+f.size/4),
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: proto},
			&expr.Payload{DestRegister: proto + 1, Base: expr.PayloadBaseTransportHeader, Len: 2},
			loadPort(proto+2),
			&expr.Lookup{SourceRegister: firstRegister, SetName: f.ended})}
		rules = append(rules, rule(f.is().and(ends).and(match(drop(midstream)))))
	}
	return rules
}
