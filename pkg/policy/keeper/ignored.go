package keeper

import (
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/keeper/known"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// maxNamed bounds the addresses of one reason that are named, and the pods of one address.
const maxNamed = 3

// putLocked passes a pod to the planner with the addresses that its node owns. It keeps the other
// addresses in outside.
func (k *Keeper) putLocked(p policy.Pod) {
	claimed := p.Addrs
	p.Addrs = slices.DeleteFunc(slices.Clone(claimed), func(a netip.Addr) bool {
		return !k.ownsLocked(p.Node, a)
	})
	k.planner.PutPod(p)

	if len(p.Addrs) == len(claimed) || p.HostNetwork || p.Finished || k.prefixes == nil {
		delete(k.outside, p.Name)
		return
	}
	var outside []netip.Addr
	for _, a := range claimed {
		if !k.ownsLocked(p.Node, a) {
			outside = append(outside, a)
		}
	}
	k.outside[p.Name] = outside
}

// ownsLocked reports whether an address lies in a pod prefix of the node.
func (k *Keeper) ownsLocked(node string, a netip.Addr) bool {
	return known.Owns(k.prefixes[node], a)
}

// ignoredLocked returns the addresses that pods claim but that do not identify a pod.
func (k *Keeper) ignoredLocked() *telemetry.IgnoredAddrs {
	var ignored telemetry.IgnoredAddrs
	for _, addrs := range k.outside {
		ignored.OutsidePrefix += len(addrs)
	}
	_, pods := least(maps.Keys(k.outside), maxNamed, policy.Name.Compare)
	for _, name := range pods {
		ignored.Some = append(ignored.Some, fmt.Sprintf("%s of pod %s is outside the prefixes of "+
			"node %s", k.outside[name][0], name, k.pods[name].Node))
	}

	shared, addrs := least(k.planner.Shared(), maxNamed, netip.Addr.Compare)
	ignored.Shared = shared
	for _, a := range addrs {
		names := k.planner.Claimants(a)
		text := fmt.Sprintf("%d pods claim %s: %s", len(names), a, names[0])
		for _, name := range names[1:min(len(names), maxNamed)] {
			text += ", " + name.String()
		}
		ignored.Some = append(ignored.Some, text)
	}
	return &ignored
}

// least returns the number of values, and the smallest of them in order, at most `most`. Sorting
// all values would cost more.
func least[T any](all iter.Seq[T], most int, compare func(a, b T) int) (count int, some []T) {
	for v := range all {
		count++
		i, _ := slices.BinarySearchFunc(some, v, compare)
		if i == most {
			continue
		}
		some = slices.Insert(some, i, v)
		some = some[:min(len(some), most)]
	}
	return count, some
}
