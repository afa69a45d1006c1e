package keeper

import (
	"errors"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/interpret"
	"github.com/kubeveil/kubeveil/pkg/policy/policytest"
)

// A daemon may die between any two of the steps that bring a change in force: reservations, loss of
// the fast path, the table's transaction, return of the fast path. The kernel then allows only
// flows that the old or the new plan allows. The next daemon brings the whole change in force.
func TestDeathAtAnyStepAllowsNoMoreThanOldOrNew(t *testing.T) {
	n := newNode(t)
	flows := someFlows()
	deaths := map[string]deadly{"before the table": {retain: true}, "behind the table": {allow: true},
		"at the end": {}}
	rapid.Check(t, func(rt *rapid.T) {
		w := policytest.DrawWorld(rt)
		begin := func() {
			n.fast, n.options = deadly{}, w.Options
			n.restart()
			n.Keeper.planner, n.Keeper.prefixes = w.TellAll(), map[string][]netip.Prefix{}
			n.Listed()
		}
		for range rapid.IntRange(5, 20).Draw(rt, "objects") {
			w.Change(rt, w.NewPlanner())
		}
		begin()
		n.step()
		before := n.judge(flows)

		for range rapid.IntRange(1, 4).Draw(rt, "changes") {
			w.Change(rt, n.planner)
		}
		at := rapid.SampledFrom([]string{"before the table", "behind the table",
			"at the end"}).Draw(rt, "death")
		n.Keeper.fast, n.attachments = deaths[at], true
		if err := n.Host.Do(n.Keeper.step); (err == nil) != (at == "at the end") {
			rt.Fatalf("death %s: %v", at, err)
		}
		between := n.judge(flows)

		begin()
		n.step()
		for i, after := range n.judge(flows) {
			f, want := flows[i], w.Judge(flows[i])
			denied := after != policy.Allow && want != policy.Allow
			// For a denied segment outside a connection, the two may report different reasons.
			if after != want && !(f.Midstream && denied) {
				rt.Fatalf("the next daemon: %+v: %s, want %s", f, after, want)
			}
			if between[i] == policy.Allow && before[i] != policy.Allow && after != policy.Allow {
				rt.Fatalf("death %s: %+v passes, before it was %s, afterwards %s", at, f, before[i],
					after)
			}
		}
	})
}

// someFlows returns every fourth flow of policytest.Flows, from and to pods of the node and others.
func someFlows() (flows []policy.Flow) {
	for i, f := range policytest.Flows() {
		if i%4 == 0 {
			f.FromPod, f.ToPod = i%8 == 0, i%16 < 8
			f.ToNode = f.FromPod && !f.ToPod && i%5 < 3
			flows = append(flows, f)
		}
	}
	return flows
}

// judge returns the verdicts of the kernel's table.
func (n *node) judge(flows []policy.Flow) (verdicts []policy.Verdict) {
	n.t.Helper()
	n.must(func() error {
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
			verdicts = append(verdicts, d.Verdict)
		}
		return nil
	})
	return verdicts
}

// deadly is a fast path that no pod has. Its Move fails before or after apply, as if the daemon
// died there.
type deadly struct{ retain, allow bool }

func (d deadly) Move(_ map[string]bool, _ func(nl.Opened) bool, apply func() error) error {
	if err := died(d.retain); err != nil {
		return err
	}
	if err := apply(); err != nil {
		return err
	}
	return died(d.allow)
}

func died(here bool) error {
	if here {
		return errors.New("the daemon died")
	}
	return nil
}

func (deadly) Opened() ([]nl.Opened, error) { return nil, nil }
func (deadly) Fast() map[string]bool        { return nil }
