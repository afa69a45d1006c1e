package keeper

import "github.com/kubeveil/kubeveil/internal/loop"

// turn runs a step. At a resync without any change, it only gives pods the fast path again.
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

// unchanged reports whether no record, no reservation and nothing in the kernel's ruleset changed
// since attach read them, and each record was of a known pod.
func (k *Keeper) unchanged() bool {
	return k.own.touched.Same(k.paths.Touched()) &&
		k.shown.Load().status.Pending == 0 && k.own.table.Stands()
}
