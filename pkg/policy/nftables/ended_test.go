package nftables_test

import (
	"net/netip"
	"testing"

	"github.com/kubeveil/kubeveil/internal/nfnl"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables"
	"github.com/kubeveil/kubeveil/pkg/policy/policytest"
)

// Answers to ended flows are dropped if their addresses, ports and protocol match. These elements
// are not part of the plan, so a restarted daemon adopts the table with them.
func TestAnswersToEndedFlowsAreDropped(t *testing.T) {
	for _, proto := range []policy.Proto{policy.UDP, policy.SCTP} {
		l, p := two(t)
		l.apply(p.Plan())
		var flows []policy.Flow
		var ended []nftables.Answer
		for i := range 2 {
			f := policy.Flow{Src: policytest.PodAddrs(2)[i], Dst: policytest.PodAddrs(3)[i],
				FromPod: true, ToPod: true, Proto: proto, Port: 53}
			flows = append(flows, f)
			ended = append(ended, nftables.Answer{Proto: proto, Dst: netip.AddrPortFrom(f.Dst, f.Port),
				Src: netip.AddrPortFrom(f.Src, sourcePort(l.id+uint64(i)))})
		}
		drop := func(list []nftables.Answer) {
			l.node.Run(t, func() error {
				c, err := nfnl.Open()
				if err != nil {
					return err
				}
				defer func() { _ = c.Close() }()
				return nftables.DropAnswers(c, list)
			})
		}

		drop(ended)
		drop(append(ended[1:], ended...)) // They are dropped for longer.
		first := l.id
		l.arrive(flows, false)
		l.table.Forget()
		if n := l.apply(p.Plan()); n != 0 {
			t.Errorf("%s: the plan that is in force took %d changes", proto, n)
		}
		l.id = first
		l.arrive(flows, false)
		l.arrive(flows, true) // from other ports
	}
}
