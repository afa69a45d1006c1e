package planner_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/policytest"
)

// A copy makes the plans of its original. Changes of the copy do not affect the original.
func TestCopyMakesTheSamePlanAndLeavesTheOriginal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := policytest.DrawWorld(t)
		p := w.NewPlanner()
		for range rapid.IntRange(1, 40).Draw(t, "changes") {
			w.Change(t, p)
		}
		want := p.Plan()

		opts := cmp.Options{policytest.CompareAddrs, cmpopts.EquateEmpty(),
			cmp.Comparer(func(a, b policy.SetMap) bool {
				return cmp.Equal(setsOf(a), setsOf(b), policytest.CompareAddrs,
					cmpopts.EquateEmpty())
			})}
		q := p.Copy()
		if diff := cmp.Diff(want, q.Plan(), opts); diff != "" {
			t.Fatalf("plan of the copy: %s", diff)
		}
		other := *w
		for range rapid.IntRange(1, 10).Draw(t, "changes of the copy") {
			other.Change(t, q)
		}
		q.Plan()
		if diff := cmp.Diff(want, p.Plan(), opts); diff != "" {
			t.Fatalf("plan of the original after changes of the copy: %s", diff)
		}
	})
}

func setsOf(m policy.SetMap) map[string]policy.Set {
	all := map[string]policy.Set{}
	for name, s := range m.All() {
		all[name] = *s
	}
	return all
}
