package planner_test

import (
	"fmt"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
	"github.com/kubeveil/kubeveil/pkg/policy/policytest"
)

// Budgets of lines of the random planners of these tests.
const namespaceLines, nodeLines = 24, 40

var crowded = []string{"a", "b", "c", "d"}

// newCrowded returns a planner with small budgets and pods of each namespace.
func newCrowded(meanwhile int) *planner.Planner {
	p := planner.New("here")
	p.Limit(namespaceLines, nodeLines, meanwhile)
	for i, namespace := range crowded {
		putPods(p, namespace, 4*i, 3, true)
	}
	p.Plan()
	return p
}

// drawCrowding returns a random change of the policies and pods of one namespace.
func drawCrowding(t *rapid.T) func(*planner.Planner) {
	namespace := rapid.SampledFrom(crowded).Draw(t, "namespace")
	first := 0
	for i, name := range crowded {
		if name == namespace {
			first = 4 * i
		}
	}

	var changes []func(*planner.Planner)
	for range rapid.IntRange(1, 3).Draw(t, "changes") {
		name := policy.Name{Namespace: namespace,
			Name: fmt.Sprint("p", rapid.IntRange(0, 4).Draw(t, "policy"))}
		pod := first + rapid.IntRange(0, 3).Draw(t, "pod")
		switch rapid.IntRange(0, 7).Draw(t, "change") {
		case 0:
			changes = append(changes, func(p *planner.Planner) { p.DeletePolicy(name) })
		case 1:
			changes = append(changes, func(p *planner.Planner) {
				putPods(p, namespace, pod, 1, true)
			})
		case 2:
			gone := policy.Name{Namespace: namespace, Name: fmt.Sprint("pod-", pod)}
			changes = append(changes, func(p *planner.Planner) { p.DeletePod(gone) })
		default:
			np := policytest.OwnPorts(namespace, fmt.Sprint("pod-", pod),
				rapid.IntRange(1, 12).Draw(t, "lines"), false)[0]
			np.Name = name
			if rapid.IntRange(0, 2).Draw(t, "all") == 0 {
				np.Subjects = nil
			}
			changes = append(changes, func(p *planner.Planner) { p.PutPolicy(np) })
		}
	}

	return func(p *planner.Planner) {
		for _, change := range changes {
			change(p)
		}
	}
}

// settle makes drafts and plans until the planner has found no more.
func settle(t *rapid.T, p *planner.Planner) (plan *policy.Plan, drafts int) {
	plan = p.Plan()
	for makeDrafts(p) {
		if drafts++; drafts > 100 {
			t.Fatal("drafts follow drafts")
		}
		plan = p.Plan()
	}
	return plan, drafts
}

func checkBudgets(t *rapid.T, p *planner.Planner) {
	lines, total := p.LineCounts(), 0
	for namespace, n := range lines {
		if total += n; n > namespaceLines {
			t.Fatalf("namespace %s has %d lines", namespace, n)
		}
	}
	if total > nodeLines {
		t.Fatalf("the node has %d lines: %v", total, lines)
	}
}

// A planner that postpones comes to the plan of one that does not, the policies that deny included.
// So it does whether all changes are postponed or only those that exceed a budget.
func TestDraftsDenyWhatPlanWouldDeny(t *testing.T) {
	denied := 0
	rapid.Check(t, func(t *rapid.T) {
		atOnce, beside := newCrowded(1<<20), newCrowded(1<<20)
		if beside.Postpone(true); rapid.Bool().Draw(t, "all") {
			beside.PostponeAll()
		}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			change := drawCrowding(t)
			change(atOnce)
			change(beside)
			want := atOnce.Plan()
			got, _ := settle(t, beside)
			denied += len(want.Denials)
			if diff := cmp.Diff(want, got, policytest.CompareAddrs); diff != "" {
				t.Fatalf("the plan differs (-at once +beside):\n%s", diff)
			}
			if !maps.Equal(atOnce.LineCounts(), beside.LineCounts()) {
				t.Fatalf("lines %v at once, %v beside", atOnce.LineCounts(), beside.LineCounts())
			}
			checkBudgets(t, beside)
		}
	})
	if denied == 0 {
		t.Error("no policy denied: the test shows nothing")
	}
}

// Namespaces that change at any time, also while their drafts are made, come within their budgets.
// No plan has more lines than the node may have meanwhile.
func TestDraftsInAnyOrderComeWithinTheBudgets(t *testing.T) {
	const meanwhile = 60
	rapid.Check(t, func(t *rapid.T) {
		p := newCrowded(meanwhile)
		p.PostponeAll()
		var begun []*planner.Draft
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				p.Plan()
				for _, d := range p.Drafts() {
					p.Begin(d)
					begun = append(begun, d)
				}
			case 1:
				if len(begun) > 0 {
					begun[0].Make()
					p.Adopt(begun[0])
					begun = begun[1:]
				}
				p.Plan()
				total := 0
				for _, n := range p.LineCounts() {
					total += n
				}
				if total > meanwhile {
					t.Fatalf("the node has %d lines meanwhile: %v", total, p.LineCounts())
				}
			default:
				drawCrowding(t)(p)
			}
		}

		for _, d := range begun {
			d.Make()
			p.Adopt(d)
		}
		plan, _ := settle(t, p)
		checkBudgets(t, p)
		if len(plan.Postponed) > 0 {
			t.Fatalf("postponed %q", plan.Postponed)
		}
	})
}

// What exceeds the node's budget is planned as a draft: Plan makes no chain of the namespace that
// has to deny, even if its own change is small or another namespace changed.
func TestPlanDeniesNothingItself(t *testing.T) {
	p := newCrowded(1 << 20)
	p.Postpone(true)
	put := func(namespace, name string, lines int) {
		np := policytest.OwnPorts(namespace, name, lines, false)[0]
		np.Subjects, np.Name.Name = nil, name
		p.PutPolicy(np)
	}
	put("a", "p", 12)
	put("a", "q", 12)
	put("b", "p", 10)
	if before := p.Plan(); len(before.Postponed) > 0 {
		t.Fatalf("postponed %q", before.Postponed)
	}

	put("c", "p", 10)
	plan := p.Plan()
	if diff := cmp.Diff([]string{"a"}, plan.Postponed); diff != "" || len(plan.Denials) > 0 {
		t.Fatalf("postponed %q, %d deny", plan.Postponed, len(plan.Denials))
	}

	drafts := p.Drafts()
	if len(drafts) != 1 || !drafts[0].Reduces {
		t.Fatalf("drafts %+v", drafts)
	}
	makeDraft(p, drafts[0])
	plan = p.Plan()
	if len(plan.Denials) != 1 || plan.Denials[0].Name.String() != "a/p" {
		t.Errorf("%+v deny, want a/p", plan.Denials)
	}

	put("b", "q", 20)
	if plan := p.Plan(); !cmp.Equal(plan.Postponed, []string{"b"}) {
		t.Errorf("beyond the budget of a namespace: postponed %q", plan.Postponed)
	}
}

// Drafts that begin together do not see each other's lines. Once these are more than the node may
// have meanwhile, Plan itself makes policies deny.
func TestPlanDeniesItselfFarBeyondTheBudget(t *testing.T) {
	const meanwhile = 60
	p := newCrowded(meanwhile)
	p.PostponeAll()
	for _, namespace := range crowded {
		for i := range 2 {
			np := policytest.OwnPorts(namespace, fmt.Sprint("p", i), namespaceLines/2, false)[0]
			np.Subjects = nil
			p.PutPolicy(np)
		}
	}
	p.Plan()
	drafts := p.Drafts()
	for _, d := range drafts {
		p.Begin(d)
	}

	for i, d := range drafts {
		d.Make()
		p.Adopt(d)
		plan, total := p.Plan(), 0
		for _, n := range p.LineCounts() {
			total += n
		}
		if total > meanwhile || (len(plan.Denials) > 0) != (i >= 2) {
			t.Errorf("%d drafts: %d lines, %d policies deny", i+1, total, len(plan.Denials))
		}
	}
}
