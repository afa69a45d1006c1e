package keeper

import (
	"errors"
	"net/netip"
	"time"

	"github.com/kubeveil/kubeveil/internal/nfnl"
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
	unjudged, losing := k.unjudged(plan), k.losing(plan)
	tracked := k.track(plan, losing, nil)
	err := k.revoker.Force(plan, func() (err error) {
		if k.fast != nil {
			if err := k.fast.Retain(unjudged); err != nil {
				return err
			}
		}
		result, err = k.own.table.Apply(plan)
		return err
	})
	if err == nil && k.fast != nil {
		err = k.fast.Allow(unjudged)
		// This adds the connections that pods opened meanwhile.
		k.forget(k.track(plan, losing, tracked))
	}
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
	if k.fast == nil {
		return nil
	}
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

// losing returns the addresses of the pods that lose the fast path when a plan comes in force. For
// the first plan of a process these are all judged pods, since any of them may have the fast path.
func (k *Keeper) losing(plan *policy.Plan) map[netip.Addr]bool {
	if k.fast == nil {
		return nil
	}
	addrs, last := map[netip.Addr]bool{}, k.shown.Load().plan
	for key, m := range plan.Members {
		if plan.Unjudged(m) {
			continue
		}
		if last != nil && (last.Members[key] == nil || !last.Unjudged(last.Members[key])) {
			continue
		}
		for _, a := range m.Addrs {
			addrs[a] = true
		}
	}
	return addrs
}

// track adds to conntrack the connections that pods opened on a fast path that they lose now, if
// the plan allows them. Conntrack did not see them, and the table drops segments of connections
// that conntrack does not know. before has the connections that an earlier call returned. track
// returns all connections of these pods.
func (k *Keeper) track(plan *policy.Plan, losing map[netip.Addr]bool,
	before []nl.Opened) (opened []nl.Opened) {
	if len(losing) == 0 {
		return nil
	}
	pods := k.shown.Load().linkByAddr(plan)
	all, err := k.fast.Opened(pods)
	known := make(map[nl.Opened]bool, len(before))
	for _, o := range before {
		known[o] = true
	}
	var allowed []nl.Opened
	judge := plan.Judges()
	for _, o := range all {
		client, server := o.Client.Addr(), o.Server.Addr()
		if !losing[client] && !losing[server] {
			continue
		}
		opened = append(opened, o)
		f := policy.Flow{Src: client, Dst: server, FromPod: pods[client] != "", ToPod: true,
			Proto: policy.TCP, Port: o.Server.Port()}
		if !known[o] && judge(f) == policy.Allow {
			allowed = append(allowed, o)
		}
	}

	if err = errors.Join(err, k.trackOpened(allowed)); err != nil {
		k.log.Warn("open connections of pods that policies select from now on may break", "error",
			err)
	}
	return opened
}

// linkByAddr returns the links of the plan's pods by their addresses.
func (f *inForce) linkByAddr(plan *policy.Plan) map[netip.Addr]string {
	pods := map[netip.Addr]string{}
	for key, m := range plan.Members {
		for _, a := range m.Addrs {
			if names := f.links[key]; len(names) == 1 {
				pods[a] = names[0]
			}
		}
	}
	return pods
}

// trackOpened adds connections to conntrack. Its socket stays open, because closing it would delay
// the next transaction of nftables (see nfnl).
func (k *Keeper) trackOpened(connections []nl.Opened) (err error) {
	if len(connections) == 0 {
		return nil
	}
	if k.own.conntrack == nil {
		if k.own.conntrack, err = nfnl.Open(); err != nil {
			return err
		}
	}
	if err = nl.TrackOpened(k.own.conntrack, connections); err != nil {
		err = errors.Join(err, k.closeConntrack())
	}
	return err
}

// closeConntrack closes the socket of trackOpened. The two must not run concurrently.
func (k *Keeper) closeConntrack() error {
	if k.own.conntrack == nil {
		return nil
	}
	c := k.own.conntrack
	k.own.conntrack = nil
	return c.Close()
}

// forget makes the fast path forget the connections of pods that have lost it.
func (k *Keeper) forget(opened []nl.Opened) {
	if len(opened) == 0 {
		return
	}
	if err := k.fast.ForgetOpened(opened); err != nil {
		k.log.Warn("connections of pods that lost the fast path could not be removed from its map",
			"error", err)
	}
}
