package nftables_test

import (
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/compile"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
	"github.com/kubeveil/kubeveil/pkg/policy/policytest"
)

// The kernel accepts the largest direction of one pod in both families, judges by it, and returns
// it as it was written. nft can list it.
func TestManyLinesWithPortsOfTheirOwnAreInForce(t *testing.T) {
	nft := nettest.NeedProgram(t, "nft")
	ns := nettest.NewNS(t)
	w := policytest.NewWorld()
	p := planner.New(w.Node)
	attach(w, p, 2, map[string]string{"app": "client"})
	for _, np := range policytest.OwnPorts("a", "client", compile.MaxChainLines, true) {
		p.PutPolicy(np)
	}
	plan := p.Plan()

	var kept, again nftables.PolicyTable
	t.Cleanup(func() { kept.Close(); again.Close() })
	ns.Run(t, func() error {
		if _, err := kept.Apply(plan); err != nil {
			return err
		}
		r, err := again.Apply(plan)
		if r.Changes != 0 {
			t.Errorf("a restarted daemon made %d changes", r.Changes)
		}
		out, listErr := command(t, nft, "list table inet kubeveil_policy")
		if listErr != nil {
			return listErr
		}
		if !strings.Contains(out, "100.64.0.2 . udp . 3") {
			t.Errorf("the list has no element of line 2:\n%s", out[:min(len(out), 4000)])
		}
		return err
	})

	var flows []policy.Flow
	for _, i := range []int{0, 1, 2, 777, 8191, 16382, 16383} {
		peer := policytest.OwnPortsPeer(i, true).Addr()
		own := policytest.PodAddrs(2)[0]
		if peer.Is6() {
			own = policytest.PodAddrs(2)[1]
		}
		for _, port := range []uint16{uint16(i), uint16(i + 1), uint16(i + 2)} {
			for _, proto := range []policy.Proto{policy.UDP, policy.TCP} {
				flows = append(flows, policy.Flow{Src: own, Dst: peer, FromPod: true, Proto: proto,
					Port: port})
			}
		}
	}
	got, err := judge(ns, flows...)
	errtest.Must(t, err)
	for i, f := range flows {
		if want := plan.Judge(f); got[i].Verdict != want {
			t.Errorf("%+v: %s by %q, want %s", f, got[i].Verdict, got[i].Rule, want)
		}
	}
}
