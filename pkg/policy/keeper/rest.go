package keeper

import "github.com/kubeveil/kubeveil/internal/loop"

// turn runs a step. After a turn that did not fail, a resync with nothing changed since only makes
// the fast path match the plan again: pods that no policy judges get it, others lose it. In the
// step of any other resync, the table is compared with the kernel.
func (k *Keeper) turn(r loop.Reason) error {
	if !r.Resync {
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
	rest := k.listed && k.prefixes != nil && k.changed.IsZero() && !k.attachments && !k.compare
	k.mu.Unlock()
	return rest && !k.own.bare && k.shown.Load().plan != nil && k.unchanged()
}

// unchanged reports whether the records, the reservations and the kernel's ruleset are as they were
// when attach last read them, and every record was of a known pod.
func (k *Keeper) unchanged() bool {
	return k.own.touched.Same(k.paths.Touched()) &&
		k.shown.Load().status.Pending == 0 && k.own.table.Stands()
}
