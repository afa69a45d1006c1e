package keeper

import (
	"errors"
	"maps"
	"net/netip"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/pod"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/keeper/known"
)

// attach reads the members that plugins wrote, then the records of attachments. It returns the plan
// that follows from them and the part of it that can come in force, whose reservations it writes. A
// plugin writes its record before it writes members, so each member has a record by then. made is
// the step's plan until now, and madePart its part, or nil. Both stay if nothing changed since.
func (k *Keeper) attach(took *taken, made, madePart *policy.Plan) (plan, part *policy.Plan,
	unknown int, err error) {
	plan, part = made, madePart
	errs := []error{k.own.table.Refresh()}
	touched := k.paths.Touched() // A record that comes later is of a member that Refresh did not see.
	if !k.own.touched.SameRecords(touched) {
		k.own.records, err = k.own.cache.List(k.paths)
		errs = append(errs, err)
	}
	defer func() {
		if k.own.touched = touched; err != nil {
			k.own.touched = pod.Touched{}
		}
	}()

	k.mu.Lock()
	addrs := map[policy.Key][]netip.Addr{}
	links := map[policy.Key][]string{}
	for _, r := range k.own.records {
		key, found := known.KeyOf(r, k.node, maps.Values(k.pods))
		if !found {
			unknown++
			continue
		}
		addrs[key] = append(addrs[key], r.Addrs...)
		links[key] = append(links[key], r.HostLink)
	}
	moved := false
	for key := range k.own.attached {
		if addrs[key] == nil {
			moved = k.planner.SetAttached(key, nil) || moved
			delete(k.own.attached, key)
		}
	}
	for key, a := range addrs {
		slices.SortFunc(a, netip.Addr.Compare)
		moved = k.planner.SetAttached(key, a) || moved
		k.own.attached[key] = true
	}
	if moved || !k.nothingLocked() {
		plan, part = k.takeLocked(took), nil
	}
	k.mu.Unlock()

	k.publish(func(f *inForce) { f.links = links })
	// A pod that is mute until a large change is in force gets no reservation.
	if part == nil {
		part = k.own.table.Part(plan)
	}
	groups := make(map[pod.Workload]string, len(part.Members))
	for key, m := range part.Members {
		groups[pod.Workload{Namespace: key.Namespace, Name: key.Name.Name, UID: key.UID}] = m.Group
	}
	for key := range addrs {
		if part.Members[key] == nil {
			unknown++
		}
	}
	// If the directory of reservations is missing, policies are being turned on and the first plan
	// is not in force yet.
	if open, err := k.paths.PolicyOpen(); err != nil || !open {
		return plan, part, unknown, errors.Join(append(errs, err)...)
	}
	return plan, part, unknown, errors.Join(append(errs, k.paths.Reserve(groups))...)
}
