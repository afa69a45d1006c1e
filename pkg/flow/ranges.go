package flow

import (
	"net/netip"
	"slices"
	"sort"
)

// ranges is a set of addresses, as sorted prefixes that do not overlap. A large cluster has
// thousands.
type ranges []netip.Prefix

// newRanges returns the union of prefixes.
func newRanges(prefixes ...netip.Prefix) ranges {
	var all ranges
	for _, p := range slices.SortedFunc(slices.Values(prefixes), netip.Prefix.Compare) {
		if last := len(all) - 1; last < 0 || !all[last].Contains(p.Addr()) {
			all = append(all, p)
		}
	}
	return all
}

// has reports whether a is in the set, by binary search.
func (r ranges) has(a netip.Addr) bool {
	after := sort.Search(len(r), func(i int) bool { return a.Less(r[i].Addr()) })
	return after > 0 && r[after-1].Contains(a)
}
