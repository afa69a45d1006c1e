package planner_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/compile"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
	"github.com/kubeveil/kubeveil/pkg/policy/policytest"
)

// Drafts are made and adopted in any order, long after they began. Once all are adopted, the plan
// is the one of a planner that received the same at once. Each plan before is complete in itself,
// and its members have the addresses of their pods.
func TestPostponedChangesComeToTheSamePlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := policytest.DrawWorld(t)
		p := w.NewPlanner()
		p.PostponeAll()
		var begun []*planner.Draft
		isBegun := map[*planner.Draft]bool{}
		begin := func(i int) {
			if d := begun[i]; !isBegun[d] {
				p.Begin(d)
				isBegun[d] = true
			}
		}
		adopt := func(i int) {
			begin(i)
			begun[i].Make()
			p.Adopt(begun[i])
			begun = slices.Delete(begun, i, i+1)
		}
		for range rapid.IntRange(1, 60).Draw(t, "changes") {
			w.Change(t, p)
			switch then := rapid.IntRange(0, 4).Draw(t, "then"); {
			case then == 0:
				checkWhole(t, w, p.Plan())
				begun = append(begun, p.Drafts()...)
			case then == 1 && len(begun) > 0:
				adopt(rapid.IntRange(0, len(begun)-1).Draw(t, "draft"))
			case then == 2 && len(begun) > 0:
				begin(rapid.IntRange(0, len(begun)-1).Draw(t, "draft"))
			}
		}

		plan := p.Plan()
		for begun = append(begun, p.Drafts()...); len(begun) > 0; begun = p.Drafts() {
			for len(begun) > 0 {
				adopt(0)
			}
			plan = p.Plan()
		}
		if diff := cmp.Diff(w.TellAll().Plan(), plan, policytest.CompareAddrs); diff != "" {
			t.Fatalf("a planner that received the same at once plans otherwise (-fresh +kept):\n%s",
				diff)
		}
	})
}

// checkWhole checks that a plan has what its members refer to, and that no member has the addresses
// of a pod that cannot be a subject.
func checkWhole(t *rapid.T, w *policytest.World, plan *policy.Plan) {
	for key, m := range plan.Members {
		pod, is := w.Pods[key.Name]
		if !is || pod.UID != key.UID || pod.Node != w.Node || pod.HostNetwork || pod.Finished ||
			!slices.Equal(m.Addrs, w.Attached[key]) {
			t.Fatalf("member %v has the addresses %v, and is pod %+v", key, m.Addrs, pod)
		}
		g := plan.Groups[m.Group]
		if g == nil {
			t.Fatalf("member %v lacks its group", key)
		}
		for _, name := range g.Chains {
			c := plan.Chains[name]
			if name != "" && c == nil {
				t.Fatalf("member %v lacks a chain", key)
			}
			if c == nil {
				continue
			}
			for _, l := range slices.Concat(c.Admin, c.Lines, c.Baseline) {
				if l.Peer != "" && plan.Sets.Get(l.Peer) == nil {
					t.Fatalf("chain %s lacks set %s", name, l.Peer)
				}
			}
		}
	}
}

// withEvil returns a planner that postpones, with a pod in namespace b and one in namespace evil.
func withEvil(t *testing.T) *planner.Planner {
	t.Helper()
	p := planner.New("here")
	putPods(p, "b", 1, 1, true)
	putPods(p, "evil", 2, 1, true)
	p.Plan()
	p.Postpone(true)
	return p
}

// makeDraft begins, makes and adopts a draft.
func makeDraft(p *planner.Planner, d *planner.Draft) {
	p.Begin(d)
	d.Make()
	p.Adopt(d)
}

// makeDrafts makes the drafts that the planner has found, and reports whether there were any.
func makeDrafts(p *planner.Planner) (made bool) {
	for _, d := range p.Drafts() {
		makeDraft(p, d)
		made = true
	}
	return made
}

// putLines makes the largest direction of namespace evil, or less by some lines.
func putLines(p *planner.Planner, less int) {
	for _, np := range policytest.OwnPorts("evil", "evil", compile.MaxChainLines-less, true) {
		np.Subjects = nil
		p.PutPolicy(np)
	}
}

// linesOf returns the number of lines that judge what the pod of namespace evil sends.
func linesOf(plan *policy.Plan) (n int) {
	for key, m := range plan.Members {
		if c := plan.Chains[plan.Groups[m.Group].Chains[policy.Egress]]; key.Namespace == "evil" &&
			c != nil {
			n += len(c.Lines)
		}
	}
	return n
}

func wantLines(t *testing.T, when string, plan *policy.Plan, lines int, postponed ...string) {
	t.Helper()
	if n := linesOf(plan); n != lines || !slices.Equal(plan.Postponed, postponed) {
		t.Errorf("%s: %d lines, postponed %q, want %d, %q", when, n, plan.Postponed, lines,
			postponed)
	}
}

// A large change of one namespace is postponed, and a small one of another is planned at once. What
// did not change is not made again.
func TestLargeChangeIsPostponedForItsNamespaceOnly(t *testing.T) {
	p := withEvil(t)
	putLines(p, 0)
	p.PutPolicy(policy.Policy{Name: policy.Name{Namespace: "b", Name: "deny"},
		Isolates: [2]bool{true, true}})
	plan := p.Plan()
	wantLines(t, "postponed", plan, 0, "evil")
	if len(plan.Chains) != 1 {
		t.Errorf("%d chains, want the one of namespace b", len(plan.Chains))
	}
	drafts := p.Drafts()
	if len(drafts) != 1 || len(p.Drafts()) != 0 {
		t.Fatalf("%d drafts", len(drafts))
	}

	makeDraft(p, drafts[0])
	before := p.Plan()
	wantLines(t, "adopted", before, compile.MaxChainLines)
	p.DeletePolicy(policy.Name{Namespace: "evil", Name: "evil-ports-0"})
	p.Plan()
	makeDrafts(p)
	after := p.Plan()
	wantLines(t, "less", after, compile.MaxChainLines-compile.MaxLines)
	for name, s := range after.Sets.All() {
		if before.Sets.Get(name) != s {
			t.Fatalf("set %s was made again", name)
		}
	}

	// Pods that the same policies select need no draft.
	putPods(p, "evil", 3, 1, true)
	wantLines(t, "another pod", p.Plan(), 2*(compile.MaxChainLines-compile.MaxLines))
}

// A namespace that changes with each draft has the changes of the drafts in force.
func TestNamespaceThatChangesAgainAndAgainIsPlanned(t *testing.T) {
	p := withEvil(t)
	for i := 0; i < 8; i += 2 {
		putLines(p, i)
		p.Plan()
		drafts := p.Drafts()
		if len(drafts) != 1 {
			t.Fatalf("change %d: %d drafts", i, len(drafts))
		}
		p.Begin(drafts[0])
		putLines(p, i+1)
		p.Plan()
		drafts[0].Make()
		p.Adopt(drafts[0])
		wantLines(t, fmt.Sprint("change ", i), p.Plan(), compile.MaxChainLines-i, "evil")
		makeDrafts(p)
	}
}

// Changes that come before a draft begins are in it.
func TestDraftIsOfTheNewestChange(t *testing.T) {
	p := withEvil(t)
	putLines(p, 0)
	p.Plan()
	drafts := p.Drafts()
	putLines(p, 1)
	p.Plan()
	putLines(p, 2) // No plan follows.
	makeDraft(p, drafts[0])
	wantLines(t, "adopted", p.Plan(), compile.MaxChainLines-2)
	if n := len(p.Drafts()); n != 0 {
		t.Errorf("%d more drafts", n)
	}
}

// Policies and pods change, and plans are made, while a draft is made.
func TestDraftIsMadeBesideOtherChanges(t *testing.T) {
	p := withEvil(t)
	putLines(p, 0)
	p.Plan()
	d := p.Drafts()[0]
	p.Begin(d)
	made := make(chan struct{})
	go func() {
		defer close(made)
		d.Make()
	}()

	for i, ended := 0, false; !ended; i++ {
		np := policytest.OwnPorts("evil", "evil", 10, true)[0]
		np.Object.Generation = int64(i)
		p.PutPolicy(np)
		putPods(p, "evil", 3+i%2, 1, true)
		p.DeletePod(policy.Name{Namespace: "evil", Name: "pod-2"})
		p.Plan()
		select {
		case <-made:
			ended = true
		default:
		}
	}

	p.Adopt(d)
	p.Plan()
	makeDrafts(p)
	if plan := p.Plan(); len(plan.Postponed) > 0 {
		t.Errorf("postponed %q", plan.Postponed)
	}
}
