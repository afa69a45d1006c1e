package keeper

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/pod"
	"github.com/kubeveil/kubeveil/pkg/policy"
)

// attach reads the members that plugins wrote, then the records of attachments, and writes the
// reservations of the plan that follows from them. A plugin writes its record before it writes
// members, so each member has a record by then.
func (k *Keeper) attach() (plan *policy.Plan, unknown int, err error) {
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
		key, known := k.keyOf(r)
		if !known {
			unknown++
			continue
		}
		addrs[key] = append(addrs[key], r.Addrs...)
		links[key] = append(links[key], r.HostLink)
	}
	for key := range k.own.attached {
		if addrs[key] == nil {
			k.planner.SetAttached(key, nil)
			delete(k.own.attached, key)
		}
	}
	for key, a := range addrs {
		slices.SortFunc(a, netip.Addr.Compare)
		k.planner.SetAttached(key, a)
		k.own.attached[key] = true
	}
	plan = k.planLocked()
	k.mu.Unlock()

	k.publish(func(f *inForce) { f.links = links })
	groups := make(map[pod.Workload]string, len(plan.Members))
	for key, m := range plan.Members {
		groups[pod.Workload{Namespace: key.Namespace, Name: key.Name.Name, UID: key.UID}] = m.Group
	}
	for key := range addrs {
		if plan.Members[key] == nil {
			unknown++
		}
	}
	// If the directory of reservations is missing, policies are being turned on and the first plan
	// is not in force yet.
	if open, err := k.paths.PolicyOpen(); err != nil || !open {
		return plan, unknown, errors.Join(append(errs, err)...)
	}
	return plan, unknown, errors.Join(append(errs, k.paths.Reserve(groups))...)
}

// keyOf returns the pod of an attachment. The record names the pod if the runtime passed it.
// Otherwise keyOf returns the pod of this node whose status has an address of the record.
func (k *Keeper) keyOf(r pod.Record) (policy.Key, bool) {
	if w := r.Workload; w.UID != "" {
		return policy.Key{Name: policy.Name{Namespace: w.Namespace, Name: w.Name}, UID: w.UID}, true
	}
	var found []policy.Key
	for _, p := range k.pods {
		if p.Node == k.node && !p.HostNetwork && !p.Mirror &&
			slices.ContainsFunc(p.Addrs, func(a netip.Addr) bool { return slices.Contains(r.Addrs, a) }) {
			found = append(found, policy.Key{Name: p.Name, UID: p.UID})
		}
	}
	if len(found) != 1 {
		return policy.Key{}, false
	}
	return found[0], true
}
