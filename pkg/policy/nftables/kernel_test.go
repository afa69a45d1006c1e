package nftables_test

import (
	"os/exec"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/interpret"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
	"github.com/kubeveil/kubeveil/pkg/policy/policytest"
)

// judge judges flows by the kernel's table.
func judge(ns *nettest.NS, flows ...policy.Flow) (out []interpret.Decision, err error) {
	err = ns.Do(func() (err error) {
		k, err := interpret.Open()
		if err != nil {
			return err
		}
		defer k.Close()
		for _, f := range flows {
			d, err := k.Judge(interpret.Packet{Flow: f})
			if err != nil {
				return err
			}
			out = append(out, d)
		}
		return nil
	})
	return out, err
}

// The interpreter of the plan, and the interpreter of the rules and elements that the kernel
// returns, come to the same verdicts.
func TestTableAsReadJudgesAsThePlan(t *testing.T) {
	for name, boxed := range map[string]bool{"rules": false, "boxes": true} {
		t.Run(name, func(t *testing.T) {
			ns := nettest.NewNS(t)
			var kept nftables.PolicyTable
			if boxed {
				kept.BoxAll()
			}
			t.Cleanup(func() { kept.Close() })
			checkTableAsRead(t, ns, &kept)
		})
	}
}

func checkTableAsRead(t *testing.T, ns *nettest.NS, kept *nftables.PolicyTable) {
	rapid.Check(t, func(t *rapid.T) {
		w := policytest.DrawWorld(t)
		p := w.NewPlanner()
		for _, i := range local {
			attach(w, p, i, policytest.DrawLabels(t))
		}
		apply := func() (plan *policy.Plan) {
			plan = p.Plan()
			if err := ns.Do(func() error { _, err := kept.Apply(plan); return err }); err != nil {
				t.Fatal(err)
			}
			return plan
		}
		for range rapid.IntRange(5, 30).Draw(t, "changes") {
			w.Change(t, p)
			if rapid.IntRange(0, 3).Draw(t, "apply") == 0 {
				apply()
			}
		}
		plan := apply()

		var flows []policy.Flow
		for i, f := range policytest.Flows() {
			if i%3 == 0 {
				f.FromPod, f.ToPod = i%2 == 0, i%4 < 2
				f.ToNode = f.FromPod && !f.ToPod && i%5 < 3
				flows = append(flows, f)
			}
		}
		for i, f := range policytest.Errors() {
			if i%3 == 0 {
				flows = append(flows, f)
			}
		}
		got, err := judge(ns, flows...)
		if err != nil {
			t.Fatal(err)
		}
		for i, f := range flows {
			want, have := plan.Judge(f), got[i].Verdict
			// For a segment outside a connection that is denied anyway, the two may report
			// different reasons.
			if f.Midstream && want != policy.Allow && have != policy.Allow {
				continue
			}
			if have != want {
				t.Fatalf("%+v: %s by %q, want %s", f, have, got[i].Rule, want)
			}
		}
	})
}

// tampered returns a node with serverPolicy in force, and a function that changes the table as
// another program would.
func tampered(t *testing.T) (ns *nettest.NS, flows []policy.Flow, nft func(string)) {
	program := nettest.NeedProgram(t, "nft")
	ns = nettest.NewNS(t)
	w := policytest.NewWorld()
	p := planner.New(w.Node)
	attach(w, p, 1, map[string]string{"app": "server"})
	attach(w, p, 2, map[string]string{"app": "client"})
	p.PutPolicy(serverPolicy())

	ns.Run(t, func() error {
		var kept nftables.PolicyTable
		defer kept.Close()
		_, err := kept.Apply(p.Plan())
		return err
	})
	for f := range 2 {
		flows = append(flows, policy.Flow{Src: policytest.PodAddrs(2)[f],
			Dst: policytest.PodAddrs(1)[f], Proto: policy.TCP, Port: 80, ToPod: true})
	}
	return ns, flows, func(args string) {
		t.Helper()
		ns.Exec(t, program, strings.Fields(args)...)
	}
}

// sets returns the names of the table's sets with a prefix.
func sets(t *testing.T, ns *nettest.NS, prefix string) (names []string) {
	t.Helper()
	ns.Run(t, func() error {
		out, err := exec.CommandContext(t.Context(), "nft", "list", "sets", "inet").Output()
		for _, line := range strings.Split(string(out), "\n") {
			if f := strings.Fields(line); len(f) > 1 && f[0] == "set" &&
				strings.HasPrefix(f[1], prefix) {
				names = append(names, f[1])
			}
		}
		return err
	})
	if len(names) == 0 {
		t.Fatalf("no set %s…", prefix)
	}
	return names
}

func TestTamperedTableIsSeen(t *testing.T) {
	ns, flows, nft := tampered(t)
	expect := func(what string, want policy.Verdict) {
		t.Helper()
		got, err := judge(ns, flows...)
		if err != nil {
			t.Fatalf("%s: judge: %v", what, err)
		}
		for i, d := range got {
			if d.Verdict != want || d.Rule == "" {
				t.Errorf("%s: %+v: %s by %q, want %s", what, flows[i], d.Verdict, d.Rule, want)
			}
		}
	}

	expect("as written", policy.Allow)
	for _, s := range sets(t, ns, "p") {
		nft("flush set inet " + abi.NFTPolicyTable + " " + s)
	}
	expect("the peers flushed", policy.DenyIngress)
	for _, s := range sets(t, ns, abi.NFTMembers4[:1]) {
		nft("flush set inet " + abi.NFTPolicyTable + " " + s)
	}
	expect("the members flushed", policy.DenyPending)
	nft("add table inet " + abi.NFTPolicyTable + " { flags dormant ; }")
	expect("a dormant table", policy.Allow)
	nft("delete table inet " + abi.NFTPolicyTable)
	expect("no table", policy.Allow)
}

func TestRuleOfAnotherProgramIsAnError(t *testing.T) {
	ns, flows, nft := tampered(t)
	nft("insert rule inet " + abi.NFTPolicyTable + " ingress accept")
	if got, err := judge(ns, flows...); err == nil ||
		!strings.Contains(err.Error(), "another program wrote rule 1") {
		t.Errorf("judged %+v, %v", got, err)
	}
}
