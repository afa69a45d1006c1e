package nftables_test

import (
	"errors"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/compile"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
	"github.com/kubeveil/kubeveil/pkg/policy/policytest"
)

// sliced returns a node with serverPolicy in force, and the planner, which then also has the
// largest direction of the client.
func sliced(t *testing.T) (ns *nettest.NS, p *planner.Planner) {
	ns = nettest.NewNS(t)
	w := policytest.NewWorld()
	p = planner.New(w.Node)
	attach(w, p, 1, map[string]string{"app": "server"})
	attach(w, p, 2, map[string]string{"app": "client"})
	p.PutPolicy(serverPolicy())
	return ns, p
}

// outcomes reports whether the client reaches the server, and its first and last peer.
func outcomes(t *testing.T, ns *nettest.NS) (allowed [3]bool) {
	t.Helper()
	flows := []policy.Flow{{Src: policytest.PodAddrs(2)[0], Dst: policytest.PodAddrs(1)[0],
		FromPod: true, ToPod: true, Proto: policy.TCP, Port: 80}}
	for _, i := range []int{0, compile.MaxChainLines - 1} {
		flows = append(flows, policy.Flow{Src: policytest.PodAddrs(2)[0],
			Dst: policytest.OwnPortsPeer(i, false).Addr(), FromPod: true, Proto: policy.UDP,
			Port: uint16(1 + i)})
	}
	got, err := judge(ns, flows...)
	errtest.Must(t, err)
	for i, d := range got {
		allowed[i] = d.Verdict == policy.Allow
	}
	return allowed
}

// A large change takes several transactions, between which other programs can make their own.
// Packets are judged by the old plan until the last transaction. If a daemon dies between two of
// them, no part of the new plan is in force. The next daemon brings it in force, or removes the
// remaining sets.
func TestLargeChangeGoesInSlices(t *testing.T) {
	before, after := [3]bool{true, true, true}, [3]bool{false, true, true}
	died := errors.New("the daemon died")
	for name, again := range map[string]bool{"brought in force": true, "removed": false} {
		t.Run(name, func(t *testing.T) {
			ns, p := sliced(t)
			var first, second nftables.PolicyTable
			defer first.Close()
			defer second.Close()
			old := p.Plan()
			for _, np := range policytest.OwnPorts("a", "client", compile.MaxChainLines, false) {
				p.PutPolicy(np)
			}
			next := p.Plan()

			slices := 0
			first.AfterSlice(func() error {
				if slices++; slices == 3 {
					return died
				}
				return nil
			})
			apply := func(kept *nftables.PolicyTable, plan *policy.Plan) (err error) {
				ns.Run(t, func() error { _, err = kept.Apply(plan); return nil })
				return err
			}
			errtest.Must(t, apply(&first, old))
			if err := apply(&first, next); !errors.Is(err, died) {
				t.Fatalf("error %v", err)
			}
			if got := outcomes(t, ns); got != before {
				t.Errorf("between slices %v, want %v", got, before)
			}

			want, plan := before, old
			if again {
				want, plan = after, next
			}
			errtest.Must(t, apply(&second, plan))
			if got := outcomes(t, ns); got != want {
				t.Errorf("the next daemon: %v, want %v", got, want)
			}
			second.Forget()
			if err := apply(&second, plan); err != nil || second.Reads() != 1 {
				t.Errorf("%d reads, %v", second.Reads(), err)
			}
		})
	}
}

func TestLargeChangeIsInForceWhole(t *testing.T) {
	ns, p := sliced(t)
	var kept nftables.PolicyTable
	defer kept.Close()
	slices := 0
	kept.AfterSlice(func() error { slices++; return nil })
	ns.Run(t, func() error { _, err := kept.Apply(p.Plan()); return err })
	for _, np := range policytest.OwnPorts("a", "client", compile.MaxChainLines, false) {
		p.PutPolicy(np)
	}
	ns.Run(t, func() error { _, err := kept.Apply(p.Plan()); return err })
	if slices < 8 {
		t.Errorf("%d slices", slices)
	}
	if got := outcomes(t, ns); got != [3]bool{false, true, true} {
		t.Errorf("allowed %v", got)
	}
}

// The table is not read while no process changed the ruleset. A change of another program is
// restored.
func TestNothingIsReadWhileTheGenerationStands(t *testing.T) {
	nft := nettest.NeedProgram(t, "nft")
	ns, p := sliced(t)
	var kept nftables.PolicyTable
	defer kept.Close()
	apply := func(want int) {
		t.Helper()
		ns.Run(t, func() error {
			kept.Forget()
			if err := kept.Refresh(); err != nil {
				return err
			}
			_, err := kept.Apply(p.Plan())
			return err
		})
		if got := kept.Reads(); got != want {
			t.Errorf("%d reads, want %d", got, want)
		}
	}

	apply(1)
	apply(1)
	p.PutPolicy(policy.Policy{Name: policy.Name{Namespace: "a", Name: "another"},
		Isolates: [2]bool{true}})
	apply(1) // The PolicyTable does not read its own write.
	apply(1)

	ns.Run(t, func() error {
		_, err := command(t, nft, "delete element inet kubeveil_policy self4 { 198.18.0.1 . 198.18.0.1 }")
		return err
	})
	apply(2)
	apply(2)
	ns.Run(t, func() error {
		_, err := command(t, nft, "get element inet kubeveil_policy self4 { 198.18.0.1 . 198.18.0.1 }")
		return err
	})
}

// After another program's transaction the members of groups are read once, not for each plan until
// the table is compared.
func TestMembersAreReadOnceAfterAnotherProgramsChange(t *testing.T) {
	nft := nettest.NeedProgram(t, "nft")
	ns, p := sliced(t)
	var kept nftables.PolicyTable
	defer kept.Close()
	edits, between := 0, func() {}
	edit := func(reads int) {
		t.Helper()
		edits++
		p.PutPolicy(policy.Policy{Name: policy.Name{Namespace: "a", Name: "another"},
			Isolates: [2]bool{true, edits%2 == 0}})
		ns.Run(t, func() error {
			if err := kept.Refresh(); err != nil {
				return err
			}
			between()
			_, err := kept.Apply(p.Plan())
			return err
		})
		if got := kept.Reads(); got != reads {
			t.Errorf("edit %d: %d reads, want %d", edits, got, reads)
		}
	}
	another := func(args string) {
		t.Helper()
		ns.Run(t, func() error {
			_, err := command(t, nft, args)
			return err
		})
	}

	edit(1)
	another("add table inet another")
	edit(2)
	edit(2)
	edit(2)
	another("delete table inet another")
	edit(3)
	edit(3)
	between = func() { another("add table inet another") }
	edit(3)
	between = func() {}
	edit(4)
	edit(4)
}
