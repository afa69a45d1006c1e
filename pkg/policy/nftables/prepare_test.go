package nftables

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/compile"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables/chains"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables/sets"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
	"github.com/kubeveil/kubeveil/pkg/policy/policytest"
)

// texts returns a content as text: the rules of each chain, and the keys of each set.
func texts(c *content) map[string][]string {
	out := map[string][]string{}
	var cached chains.Fragments
	for name, ch := range c.chains {
		for _, r := range ch.Rules(&cached) {
			out["chain "+name] = append(out["chain "+name], r.Text, string(r.Exprs))
		}
	}
	for name, s := range c.sets {
		keys := map[string]bool{}
		for _, part := range s.Elements {
			maps.Copy(keys, part)
		}
		properties := *s
		properties.Elements = nil
		out["set "+name] = append(slices.Sorted(maps.Keys(keys)), fmt.Sprintf("%+v", properties))
	}
	return out
}

// A maker that makes the content of many plans, and keeps what was prepared for any of them, makes
// the same as one that makes the content of one plan.
func TestKeptContentIsTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := policytest.DrawWorld(t)
		p := w.NewPlanner()
		kept := &PolicyTable{}
		kept.maker.chains.Boxed = rapid.IntRange(0, 3).Draw(t, "boxed") == 0
		var plans []*policy.Plan
		for range rapid.IntRange(1, 25).Draw(t, "plans") {
			for range rapid.IntRange(1, 5).Draw(t, "changes") {
				w.Change(t, p)
			}
			plans = append(plans, p.Plan())
			i := rapid.IntRange(0, len(plans)-1).Draw(t, "prepared")
			kept.Keep(Prepare(plans[i]))
			if rapid.IntRange(0, 7).Draw(t, "rest") == 0 {
				kept.keeps = 0
				kept.restLocked()
			}

			plan := plans[rapid.IntRange(0, len(plans)-1).Draw(t, "plan")]
			var fresh maker
			fresh.chains.Boxed = kept.maker.chains.Boxed
			want, got := texts(fresh.want(plan)), texts(kept.maker.want(plan))
			if !maps.EqualFunc(got, want, slices.Equal) {
				t.Fatalf("kept content\n%q\nwant\n%q", got, want)
			}
		}
	})
}

// Plans that take turns make nothing again, whether they were prepared or not.
func TestPreparedContentIsNotMadeAgain(t *testing.T) {
	lines := func(n int) *planner.Planner {
		return selected("app", policytest.OwnPorts("a", "app", n, true))
	}
	p := lines(compile.MaxChainLines)
	one := p.Plan()
	p.DeletePolicy(policy.Name{Namespace: "a", Name: "app-ports-0"})
	other := p.Plan()

	var table PolicyTable
	table.Keep(Prepare(one))
	boxes := func(plan *policy.Plan) (found []*sets.Set) {
		all := table.maker.want(plan).sets
		for _, name := range slices.Sorted(maps.Keys(all)) {
			if strings.HasPrefix(name, "xb") {
				found = append(found, all[name])
			}
		}
		return found
	}
	first := [2][]*sets.Set{boxes(one), boxes(other)}
	if len(first[0]) != 2 || len(first[1]) != 2 {
		t.Fatalf("%d and %d sets of boxes, want one per family", len(first[0]), len(first[1]))
	}
	for range 3 {
		if !slices.Equal(boxes(one), first[0]) || !slices.Equal(boxes(other), first[1]) {
			t.Error("boxes were made again")
		}
	}
}
