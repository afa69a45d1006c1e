package keeper

import (
	"maps"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/internal/loop"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables"
)

// turn runs a step. After a turn that did not fail, a resync with nothing changed since only makes
// the fast path match the plan again: pods that no policy judges get it, others lose it. In the
// step of any other resync, the table is compared with the kernel.
func (k *Keeper) turn(r loop.Reason) error {
	switch {
	case r.Resync:
	case k.canGoAhead():
		return k.makeAhead()
	default:
		return k.step()
	}
	if plan := k.shown.Load().plan; !r.Failed && k.atRest() {
		if k.fast == nil {
			return nil
		}
		return k.fast.Move(k.unjudged(plan), k.allows(plan), func() error { return nil })
	}
	k.mu.Lock()
	k.compare = true
	k.mu.Unlock()
	return k.step()
}

// atRest reports whether the last plan is in force, and nothing that it depends on or wrote changed
// since.
func (k *Keeper) atRest() bool {
	k.mu.Lock()
	rest := k.listed && k.prefixes != nil && k.nothingLocked()
	k.mu.Unlock()
	now := k.shown.Load()
	return rest && !k.own.bare && now.plan != nil && len(now.held) == 0 && k.unchanged()
}

// nothingLocked reports whether nothing was received since the last step.
func (k *Keeper) nothingLocked() bool {
	return k.changed.IsZero() && !k.attachments && !k.compare && !k.adopted
}

// unchanged reports whether the records, the reservations and the kernel's ruleset are as they were
// when attach last read them, and every record was of a known pod.
func (k *Keeper) unchanged() bool {
	return k.own.touched.Same(k.paths.Touched()) &&
		k.shown.Load().status.Pending == 0 && k.own.table.Stands()
}

// ahead is the state of large changes, which the table makes ahead while others come in force.
type ahead struct {
	// held reports whether the last part that came in force is not the whole plan, and ready
	// whether another part can come in force.
	held, ready bool
	// next is when the next slice may be made.
	next time.Time
	// since is the time of the oldest change that is held; zero if none is.
	since time.Time
}

// hold records whether changes are held after a step. changed is the time of the oldest change that
// the step received. hold returns the time of the oldest change that came in force.
func (a *ahead) hold(changed time.Time, held bool) time.Time {
	if held {
		if a.since.IsZero() {
			a.since = changed
		}
		return changed
	}
	if !a.since.IsZero() {
		changed, a.since = a.since, time.Time{}
	}
	return changed
}

// canGoAhead reports whether the next turn need only make more of what is held.
func (k *Keeper) canGoAhead() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.own.held && !k.own.ready && k.nothingLocked()
}

// makeAhead makes a slice of what is held, unless the pause after the last slice is not over, and
// wakes the loop for the next one.
func (k *Keeper) makeAhead() error {
	if k.now().Before(k.own.next) {
		return nil // The slice before it wakes the loop.
	}
	more, err := k.own.table.Ahead()
	if k.own.ready = more || err != nil; err == nil {
		k.own.next = k.now().Add(nftables.SlicePause)
		time.AfterFunc(nftables.SlicePause, k.loop.Poke)
	}
	return err
}

// namesHeld returns the namespaces of which a part of a plan lacks changes, sorted: those that the
// plan lacks too, and those with pods that the plan judges in another way.
func namesHeld(plan, part *policy.Plan) []string {
	if part == plan {
		return plan.Postponed
	}
	names := map[string]bool{}
	for _, namespace := range plan.Postponed {
		names[namespace] = true
	}
	for key, m := range plan.Members {
		if of := part.Members[key]; of == nil || of.Group != m.Group {
			names[key.Namespace] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}
