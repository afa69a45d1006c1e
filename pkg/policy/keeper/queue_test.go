package keeper

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/pkg/policy/compile"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
)

// take takes drafts of a lane until there is none, and returns their namespaces. After each it adds
// the drafts that then returns.
func take(q *queue, of lane, then func(namespace string) *planner.Draft) (order []string) {
	for d := q.next(of); d != nil; d = q.next(of) {
		q.adopted(of)
		order = append(order, d.Namespace)
		if more := then(d.Namespace); more != nil {
			q.add([]*planner.Draft{more}, time.Time{})
		}
	}
	return order
}

func large(namespace string) *planner.Draft {
	return &planner.Draft{Namespace: namespace, Large: true}
}

// A tenant has many namespaces, and each changes as soon as its draft is made. A namespace that
// changes seldom waits for the draft that is being made only.
func TestNamespaceThatChangesSeldomHasTheNextTurn(t *testing.T) {
	var q queue
	var many []*planner.Draft
	for i := range 100 {
		many = append(many, large(fmt.Sprint("many-", i)))
	}
	if begin := q.add(many, time.Time{}); !slices.Equal(begin, []lane{largeLane}) {
		t.Fatalf("lanes %v begin", begin)
	}

	turns := 0
	order := take(&q, largeLane, func(namespace string) *planner.Draft {
		if turns++; turns == 250 || turns == 500 {
			return large("small")
		}
		if turns > 600 || namespace == "small" {
			return nil
		}
		return large(namespace)
	})
	for i, namespace := range order {
		if (namespace == "small") != (i == 250 || i == 500) {
			t.Errorf("turn %d is of %s", i, namespace)
		}
	}
	if q.busy[largeLane] {
		t.Error("an empty lane is busy")
	}
}

// Namespaces that always wait have a turn each.
func TestNamespacesTakeTurns(t *testing.T) {
	var q queue
	q.add([]*planner.Draft{large("a"), large("b"), large("c")}, time.Time{})
	left := 6
	order := take(&q, largeLane, func(namespace string) *planner.Draft {
		if left--; left < 0 {
			return nil
		}
		return large(namespace)
	})
	if want := []string{"a", "b", "c", "a", "b", "c", "a", "b", "c"}; !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
}

// Drafts that are not large do not wait for large ones. One that becomes large changes its lane.
func TestLanesDoNotWaitForEachOther(t *testing.T) {
	var q queue
	medium := &planner.Draft{Namespace: "medium"}
	drafts := []*planner.Draft{large("a"), large("b"), medium}
	if begin := q.add(drafts, time.Time{}); len(begin) != 2 {
		t.Fatalf("lanes %v begin", begin)
	}
	if d := q.next(largeLane); d.Namespace != "a" {
		t.Errorf("the large lane begins with %s", d.Namespace)
	}
	if begin := q.add(nil, time.Time{}); len(begin) != 0 {
		t.Errorf("lanes %v begin again", begin)
	}
	medium.Large = true
	if d := q.next(mediumLane); d != nil || q.busy[mediumLane] {
		t.Errorf("the other lane has %v", d)
	}
	q.adopted(largeLane)
	if d := q.next(largeLane); d.Namespace != "b" {
		t.Errorf("the next is %s", d.Namespace)
	}
}

// While the node exceeds its budget, only the draft that reduces its lines is made. The lanes begin
// again after it.
func TestDraftThatReducesLinesIsMadeFirstAndAlone(t *testing.T) {
	var q queue
	reduces := large("reduces")
	reduces.Reduces = true
	q.add([]*planner.Draft{large("a"), {Namespace: "medium"}}, time.Time{})
	q.add([]*planner.Draft{reduces}, time.Time{})
	if d := q.next(mediumLane); d != nil {
		t.Errorf("the other lane has %s", d.Namespace)
	}
	if d := q.next(largeLane); d != reduces {
		t.Fatalf("the first is %s", d.Namespace)
	}
	if begin := q.add(nil, time.Time{}); len(begin) != 0 {
		t.Errorf("lanes %v begin beside it", begin)
	}

	// The step after it may come before its own lane goes on.
	q.adopted(largeLane)
	if begin := q.add(nil, time.Time{}); !slices.Equal(begin, []lane{mediumLane}) {
		t.Errorf("lanes %v begin after it", begin)
	}
	if d := q.next(largeLane); d.Namespace != "a" {
		t.Errorf("the next is %s", d.Namespace)
	}
}

func TestQueueForgetsTheOldestTurns(t *testing.T) {
	var q queue
	for i := range maxTurns + 2 {
		q.add([]*planner.Draft{large(fmt.Sprint(i))}, time.Time{})
		q.next(largeLane)
	}
	if len(q.turns) != maxTurns || q.turns["1"] != 0 || q.turns["2"] == 0 {
		t.Errorf("%d turns", len(q.turns))
	}
}

// The number of drafts and the age of the oldest are in the status until they are adopted.
func TestStatusCountsDrafts(t *testing.T) {
	n := newLargeNode(t)
	n.postpones = true
	n.goOn()
	n.clock = n.clock.Add(3 * time.Second)
	if s := n.Status(); s.Drafts != 1 || s.OldestDraft != 3 {
		t.Errorf("%d drafts, the oldest %v s", s.Drafts, s.OldestDraft)
	}
	n.putLines(compile.MaxChainLines - 1)
	n.goOn()
	if s := n.Status(); s.Drafts != 1 || s.OldestDraft < 3 {
		t.Errorf("after another change: %d drafts, the oldest %v s", s.Drafts, s.OldestDraft)
	}
	n.postpones = false
	n.postponed[0]()
	if s := n.Status(); s.Drafts != 0 || s.OldestDraft != 0 {
		t.Errorf("made: %d drafts, the oldest %v s", s.Drafts, s.OldestDraft)
	}
	n.finish()
}
