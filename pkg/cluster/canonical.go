package cluster

import (
	"cmp"
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
)

// canonical returns n in canonical form: addresses and prefixes are sorted and without duplicates,
// IPv4 addresses are not IPv4-mapped, prefixes are masked, times are in UTC, and empty slices are
// nil. Slices that already have this form are shared, not copied.
func canonical(n Node) Node {
	n.Created = n.Created.UTC().Round(0)
	n.Addresses, n.Contested = canonicalAddrs(n.Addresses), canonicalAddrs(n.Contested)
	n.PodPrefixes = canonicalPrefixes(n.PodPrefixes)
	if n.Claim == nil {
		return n
	}
	keys, endpoints := sorted(n.Claim.Keys, compareKeys), canonicalEndpoints(n.Claim.Endpoints)
	prefixes, features := canonicalPrefixes(n.Claim.PodPrefixes),
		sorted(n.Claim.Features, cmp.Compare)
	if !shared(keys, n.Claim.Keys) || !shared(endpoints, n.Claim.Endpoints) ||
		!shared(prefixes, n.Claim.PodPrefixes) || !shared(features, n.Claim.Features) {
		n.Claim = &Claim{Keys: keys, Endpoints: endpoints, PodPrefixes: prefixes, MTU: n.Claim.MTU,
			Features: features}
	}
	return n
}

// shared reports whether a and b are the same slice, with the same memory.
func shared[T any](a, b []T) bool {
	return len(a) == len(b) && (a == nil) == (b == nil) && (len(a) == 0 || &a[0] == &b[0])
}

func canonicalAddrs(addrs []netip.Addr) []netip.Addr {
	return sorted(each(addrs, netip.Addr.Unmap), netip.Addr.Compare)
}

func canonicalEndpoints(endpoints []netip.AddrPort) []netip.AddrPort {
	unmap := func(e netip.AddrPort) netip.AddrPort {
		return netip.AddrPortFrom(e.Addr().Unmap(), e.Port())
	}
	return sorted(each(endpoints, unmap), netip.AddrPort.Compare)
}

// canonicalPrefixes returns prefixes masked, sorted and without duplicates. An invalid prefix stays
// invalid, so that it can be refused.
func canonicalPrefixes(prefixes []netip.Prefix) []netip.Prefix {
	return sorted(each(prefixes, netip.Prefix.Masked), netip.Prefix.Compare)
}

// each returns a copy of in with f applied to each element. It returns in itself if f changes no
// element.
func each[T comparable](in []T, f func(T) T) []T {
	if !slices.ContainsFunc(in, func(v T) bool { return f(v) != v }) {
		return in
	}
	out := slices.Clone(in)
	for i, v := range out {
		out[i] = f(v)
	}
	return out
}

// sorted returns a copy of in, sorted and without duplicates, or nil if in is empty. It returns in
// itself if in already has this form.
func sorted[T comparable](in []T, compare func(a, b T) int) []T {
	if len(in) == 0 {
		return nil
	}
	inOrder := true
	for i := 1; i < len(in) && inOrder; i++ {
		inOrder = compare(in[i-1], in[i]) < 0
	}
	if inOrder {
		return in
	}
	out := slices.Clone(in)
	slices.SortFunc(out, compare)
	return slices.Compact(out)
}

func compareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), slices.Compare(a.Public[:], b.Public[:]))
}

// compareAge orders nodes by age, oldest first, then by name, then by content. So two different
// nodes never compare equal.
func compareAge(a, b *Node) int {
	if c := cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.Name, b.Name)); c != 0 {
		return c
	}
	return strings.Compare(content(*a), content(*b))
}

// content returns a text that orders two nodes of the same name and age.
func content(n Node) string {
	b, err := json.Marshal(n)
	if err != nil {
		// A year above 9999 cannot be marshalled. Compared nodes have the same year, so leave it
		// out.
		n.Created = n.Created.AddDate(-n.Created.Year(), 0, 0)
		b, _ = json.Marshal(n)
	}
	return string(b)
}

func compareNames(a, b Node) int { return strings.Compare(a.Name, b.Name) }
