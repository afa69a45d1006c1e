package nftables

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/internal/nfnl"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables/message"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables/sets"
)

// A plan may need many new elements for the pods of one namespace. The pods of other namespaces
// must not wait for them. So Part holds back what a large namespace changes, and Ahead makes its
// sets, a slice at a time. Between two slices, other changes come in force:
//
//	namespaces with new groups ─┬─ a slice of elements together ─► in force now
//	                            └─ others ─► a goal each ─► slices in turn ─► complete ─► in force
//
// A goal keeps the policies that its namespace had when it was made, until they are in force. So a
// namespace whose policies change again and again delays its own changes only, and each for two
// goals at most.

// maxAhead bounds the elements of all goals. A namespace beyond it waits until there is no goal.
// One goal may have more.
const maxAhead = 1 << 20

// ahead is what Part holds back. The zero value holds nothing back.
type ahead struct {
	// goals are in turn: Ahead makes a slice of the first. No two are of one namespace.
	goals []*goal
	// waiting are namespaces without a goal that are held back too, because goals have maxAhead
	// elements.
	waiting map[string]bool
	// begun holds the sets of goals that the kernel has in part, by name. PolicyTable.have has the
	// elements that were written.
	begun map[string]*begun
}

// goal is a large change of a namespace.
type goal struct {
	namespace string
	// plan is the plan with the change. pods are the pods that the change moves to another group.
	// A pod that a later plan can move at once is taken out.
	plan *policy.Plan
	pods map[policy.Key]bool
	// sets are the sets that the kernel lacked, by name, with elements together. left names those
	// that Ahead has not completed, sorted.
	sets     map[string]*sets.Set
	elements int
	left     []string
}

// begun is a set of which the kernel lacks the keys in rest.
type begun struct {
	set  *sets.Set
	rest []string
}

// Part returns the part of a plan that can come in force now: all of it but large changes of
// namespaces. Their pods keep the groups that they have, and new pods are mute. The caller passes
// the part to Apply. While a part is not the whole plan, it calls Ahead, at most once in
// SlicePause, and then Part and Apply if Ahead returns true.
func (t *PolicyTable) Part(plan *policy.Plan) *policy.Plan {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := &t.ahead
	t.keeps = max(0, t.keeps-1)
	if t.plan == nil || len(t.plan.Members) == 0 || t.have == nil {
		*a = ahead{}
		return plan // The first plan goes in slices as a whole.
	}

	fresh := map[string][]policy.Key{}
	for key, m := range plan.Members {
		if t.plan.Groups[m.Group] == nil {
			fresh[key.Namespace] = append(fresh[key.Namespace], key)
		}
	}
	a.keep(plan, t.plan)
	held := map[policy.Key]*policy.Plan{}
	for _, g := range a.goals {
		g.hold(held, fresh[g.namespace], plan, t.plan)
		delete(fresh, g.namespace)
	}
	for namespace := range a.waiting {
		holdAll(held, fresh[namespace], t.plan)
		delete(fresh, namespace)
	}

	part := plan.Holding(held)
	if len(fresh) == 0 { // No set is new, as after a change of a pod.
		return part
	}
	large := t.largeLocked(part, fresh)
	if len(large) == 0 {
		return part
	}
	for _, g := range large {
		g.plan = plan
		a.add(g)
		holdAll(held, fresh[g.namespace], t.plan)
	}
	return plan.Holding(held)
}

// keep keeps the pods of goals that have to move to a group which the plan in force does not have.
func (a *ahead) keep(plan, inForce *policy.Plan) {
	a.goals = slices.DeleteFunc(a.goals, func(g *goal) bool {
		maps.DeleteFunc(g.pods, func(key policy.Key, _ bool) bool {
			m := plan.Members[key]
			return m == nil || inForce.Groups[m.Group] != nil
		})
		return len(g.pods) == 0
	})
	if len(a.goals) == 0 {
		a.waiting = nil
	}
}

// add adds a goal, or has its namespace wait if there is no room.
func (a *ahead) add(g *goal) {
	total := g.elements
	for _, other := range a.goals {
		total += other.elements
	}
	if len(a.waiting) == 0 && (len(a.goals) == 0 || total <= maxAhead) {
		a.goals = append(a.goals, g)
		return
	}
	if a.waiting == nil {
		a.waiting = map[string]bool{}
	}
	a.waiting[g.namespace] = true
}

// hold adds to held the pods that are fresh in the goal's namespace. Once the goal is complete, its
// pods get the groups of the goal.
func (g *goal) hold(held map[policy.Key]*policy.Plan, fresh []policy.Key, plan,
	inForce *policy.Plan) {
	for _, key := range fresh {
		switch {
		case len(g.left) > 0 || !g.pods[key]:
			held[key] = inForce
		case g.plan.Members[key].Group != plan.Members[key].Group:
			held[key] = g.plan
		}
	}
}

func holdAll(held map[policy.Key]*policy.Plan, keys []policy.Key, inForce *policy.Plan) {
	for _, key := range keys {
		held[key] = inForce
	}
}

// largeLocked returns a goal without a plan for each namespace whose fresh pods need more new
// elements of the part than a slice, together with namespaces that need fewer.
func (t *PolicyTable) largeLocked(part *policy.Plan,
	fresh map[string][]policy.Key) (large []*goal) {
	want, total := t.maker.want(part), 0
	lacks := map[string]int{}
	for name, s := range want.sets {
		if _, has := t.have.sets[name]; has && t.ahead.begun[name] == nil {
			continue
		}
		for _, some := range s.Elements {
			lacks[name] += len(some)
		}
		total += lacks[name]
	}
	if total <= sliceElements {
		return nil
	}

	for namespace, keys := range fresh {
		g := &goal{namespace: namespace, pods: map[policy.Key]bool{}, sets: map[string]*sets.Set{}}
		for _, key := range keys {
			g.pods[key] = true
			for name := range t.maker.chains.Sets(part.Groups[part.Members[key].Group]) {
				if lacks[name] > 0 && g.sets[name] == nil {
					g.sets[name] = want.sets[name]
					g.elements += lacks[name]
				}
			}
		}
		g.left = slices.Sorted(maps.Keys(g.sets))
		large = append(large, g)
	}
	slices.SortFunc(large, func(a, b *goal) int {
		return cmp.Or(cmp.Compare(a.elements, b.elements),
			strings.Compare(a.namespace, b.namespace))
	})
	room := sliceElements
	for len(large) > 0 && large[0].elements <= room {
		room -= large[0].elements
		large = large[1:]
	}
	return large
}

// Ahead makes a slice of the sets of a goal. It returns true if another part of the plan may now
// come in force.
func (t *PolicyTable) Ahead() (more bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := &t.ahead
	if len(a.goals) == 0 || t.have == nil {
		return true, nil
	}
	g := a.goals[0]
	a.goals = append(a.goals[1:], g)
	c, err := t.openLocked()
	if err == nil {
		err = t.sliceLocked(c, g)
	}
	if err != nil {
		t.failedLocked()
	}
	return err == nil && len(g.left) == 0, err
}

// sliceLocked writes a slice of the sets of a goal.
func (t *PolicyTable) sliceLocked(c *nfnl.Conn, g *goal) error {
	var tx message.Transaction
	var wrote []written
	whole := 0
	for room := sliceElements; room > 0 && whole < len(g.left); {
		name := g.left[whole]
		_, has := t.have.sets[name]
		b := t.ahead.begun[name]
		switch {
		case !has:
			b = &begun{g.sets[name], missing(g.sets[name].Elements, nil)}
			tx.AddSet(ourTable.Name, name, b.set)
		case b == nil: // A part that is in force, or another goal, needed it too.
			whole++
			continue
		}

		n := 0
		if len(b.rest) > 0 {
			n = cut(b.set, b.rest, room)
			tx.AddElements(ourTable.Name, name, b.rest[:n])
		}
		wrote = append(wrote, written{name, b, n})
		if room -= max(n, 1); n == len(b.rest) {
			whole++
		}
	}

	if tx.Len() > 0 {
		if err := t.commitLocked(c, &tx); err != nil {
			return err
		}
	}
	g.left = g.left[whole:]
	t.wroteLocked(wrote)
	if t.afterSlice != nil {
		return t.afterSlice()
	}
	return nil
}

// written is a set of which the kernel got the first n keys that it lacked.
type written struct {
	name string
	*begun
	n int
}

// wroteLocked records what the kernel has now.
func (t *PolicyTable) wroteLocked(wrote []written) {
	a := &t.ahead
	if a.begun == nil {
		a.begun = map[string]*begun{}
	}
	for _, w := range wrote {
		if w.n == len(w.rest) {
			t.have.sets[w.name] = w.set.Elements
			delete(a.begun, w.name)
			continue
		}
		if t.have.sets[w.name] == nil {
			t.have.sets[w.name] = sets.Union{{}}
		}
		for _, key := range w.rest[:w.n] {
			t.have.sets[w.name][0][key] = true
		}
		w.rest = w.rest[w.n:]
		a.begun[w.name] = w.begun
	}
}

// needs reports whether a goal needs a set.
func (a *ahead) needs(set string) bool {
	return slices.ContainsFunc(a.goals, func(g *goal) bool { return g.sets[set] != nil })
}

// applied forgets complete goals, whose groups are now in force, and sets that are whole or gone.
func (a *ahead) applied(want *content) {
	a.goals = slices.DeleteFunc(a.goals, func(g *goal) bool { return len(g.left) == 0 })
	maps.DeleteFunc(a.begun, func(name string, _ *begun) bool {
		return want.sets[name] != nil || !a.needs(name)
	})
}
