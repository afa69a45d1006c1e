package keeper

import (
	"errors"
	"net/netip"
	"time"

	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables"
)

// taken describes what a step brings in force: the time of the oldest change, zero without a
// change, and the number of changes that were received until its plan was made.
type taken struct {
	changed time.Time
	told    uint64
}

// takeLocked returns the plan of all that was received, and adds to took what it has. A step plans
// again after it read attachments. A change that came in between is in that plan.
func (k *Keeper) takeLocked(took *taken) *policy.Plan {
	if took.changed.IsZero() {
		took.changed = k.changed
	}
	took.told, k.changed = k.told, time.Time{}
	return k.planLocked()
}

// planLocked returns the planner's plan with its revision.
func (k *Keeper) planLocked() *policy.Plan {
	plan := k.planner.Plan()
	if len(plan.Postponed) == 0 {
		plan.Revision = k.revisionLocked()
	}
	return plan
}

// revisionLocked returns the revision of the policies that were received.
func (k *Keeper) revisionLocked() string {
	if k.revision == "" || k.revisionTold != k.policyTold {
		k.revision, k.revisionTold = k.planner.Revision(), k.policyTold
	}
	return k.revision
}

// force brings a plan in force. received is the number of changes received when the plan was made.
// held are the namespaces of which it lacks a change.
func (k *Keeper) force(plan *policy.Plan, received uint64, held []string) (nftables.Result, error) {
	k.writes.Add(1)
	defer k.writes.Add(1)

	var result nftables.Result
	err := k.revoker.Force(plan, func() error {
		apply := func() (err error) {
			result, err = k.own.table.Apply(plan)
			return err
		}
		if k.fast == nil {
			return apply()
		}
		return k.fast.Move(k.unjudged(plan), k.allows(plan), apply)
	})
	if err == nil {
		k.publish(func(f *inForce) {
			if f.plan, f.held, f.reached = plan, held, received; len(held) == 0 {
				f.enforced = received
			}
		})
	}
	return result, err
}

// came follows up a plan, or a part of it, that came in force. since is the time of the oldest
// change in it; zero if there is none. wrote reports whether the kernel changed.
func (k *Keeper) came(plan *policy.Plan, since time.Time, wrote bool) error {
	err := k.paths.OpenPolicy()
	if k.own.shrinks {
		k.own.shrinks = false
		k.revoker.Ask()
	}
	if !since.IsZero() && k.programmed != nil && wrote {
		k.programmed(time.Since(since))
	}
	if k.denials != nil {
		k.denials(plan.Denials)
	}
	if k.own.held {
		err = errors.Join(err, k.makeAhead())
	}
	return err
}

// again makes the next step repeat everything after a step that failed. If the plan was not forced,
// the changes since the time changed are still not in force, so again restores that time.
func (k *Keeper) again(changed time.Time, forced bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.attachments, k.compare = true, true
	if !forced && !changed.IsZero() {
		k.changed = changed
	}
}

// unchangedSince reports whether the Keeper wrote nothing since then, and writes nothing now.
func (k *Keeper) unchangedSince(writes uint64) bool {
	return writes == k.writes.Load() && writes%2 == 0
}

// unjudged returns the links of the pods that no policy of the plan judges.
func (k *Keeper) unjudged(plan *policy.Plan) map[string]bool {
	names, links := map[string]bool{}, k.shown.Load().links
	for key, m := range plan.Members {
		if !plan.Unjudged(m) {
			continue
		}
		for _, name := range links[key] {
			names[name] = true
		}
	}
	return names
}

// allows returns a function that reports whether the plan allows a connection or a UDP flow to a
// pod, which the fast path carried until now.
func (k *Keeper) allows(plan *policy.Plan) func(nl.Opened) bool {
	judge := plan.Judges()
	pods := map[netip.Addr]bool{}
	for _, m := range plan.Members {
		for _, a := range m.Addrs {
			pods[a] = true
		}
	}
	return func(o nl.Opened) bool {
		client, server := o.Client.Addr(), o.Server.Addr()
		proto := policy.TCP
		if o.UDP {
			proto = policy.UDP
		}
		return judge(policy.Flow{Src: client, Dst: server, FromPod: pods[client], ToPod: true,
			Proto: proto, Port: o.Server.Port()}) == policy.Allow
	}
}
