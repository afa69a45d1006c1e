package keeper

import (
	"net/netip"
	"time"

	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables"
)

// planLocked returns the planner's plan with its revision.
func (k *Keeper) planLocked() *policy.Plan {
	plan := k.planner.Plan()
	plan.Revision = k.revisionLocked()
	return plan
}

// revisionLocked returns the revision of the policies that were received.
func (k *Keeper) revisionLocked() string {
	if k.revision == "" || k.revisionTold != k.policyTold {
		k.revision, k.revisionTold = k.planner.Revision(), k.policyTold
	}
	return k.revision
}

// force brings a plan in force. told is the number of changes received when the plan was made.
func (k *Keeper) force(plan *policy.Plan, told uint64) (nftables.Result, error) {
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
		k.publish(func(f *inForce) { f.plan, f.enforced = plan, told })
	}
	return result, err
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
