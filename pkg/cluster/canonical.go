package cluster

import (
	"cmp"
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
)

// canonical gives a copy of n that shares nothing with it, in the one form that
// everything that means the same has: addresses and prefixes sorted, without
// duplicates, IPv4 never as IPv6, prefixes masked, times in UTC, nil for empty.
func canonical(n Node) Node {
	n.Created = n.Created.UTC().Round(0)
	n.Addresses, n.Contested = canonicalAddrs(n.Addresses), canonicalAddrs(n.Contested)
	n.PodPrefixes = canonicalPrefixes(n.PodPrefixes)
	if n.Claim != nil {
		c := *n.Claim
		c.Keys = sorted(c.Keys, compareKeys)
		c.Endpoints = canonicalEndpoints(c.Endpoints)
		c.PodPrefixes = canonicalPrefixes(c.PodPrefixes)
		c.Features = sorted(c.Features, cmp.Compare)
		n.Claim = &c
	}
	return n
}

func canonicalAddrs(addrs []netip.Addr) []netip.Addr {
	out := slices.Clone(addrs)
	for i, a := range out {
		out[i] = a.Unmap()
	}
	return sorted(out, netip.Addr.Compare)
}

func canonicalEndpoints(endpoints []netip.AddrPort) []netip.AddrPort {
	out := slices.Clone(endpoints)
	for i, e := range out {
		out[i] = netip.AddrPortFrom(e.Addr().Unmap(), e.Port())
	}
	return sorted(out, netip.AddrPort.Compare)
}

// canonicalPrefixes keeps an invalid prefix, which Masked would turn into the
// zero one, so that it can be refused.
func canonicalPrefixes(prefixes []netip.Prefix) []netip.Prefix {
	out := slices.Clone(prefixes)
	for i, p := range out {
		out[i] = p.Masked()
	}
	return sorted(out, netip.Prefix.Compare)
}

// sorted gives a sorted copy without duplicates, nil when it is empty.
func sorted[T comparable](in []T, compare func(a, b T) int) []T {
	if len(in) == 0 {
		return nil
	}
	out := slices.Clone(in)
	slices.SortFunc(out, compare)
	return slices.Compact(out)
}

func compareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), slices.Compare(a.Public[:], b.Public[:]))
}

// compareAge orders nodes: the older first, then by name, then by content, so
// that two different claims are never equal.
func compareAge(a, b Node) int {
	if c := cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.Name, b.Name)); c != 0 {
		return c
	}
	return strings.Compare(content(a), content(b))
}

// content is only asked for two nodes of one name and age.
func content(n Node) string {
	b, err := json.Marshal(n)
	if err != nil {
		// A year beyond 9999 has no JSON; equal ages have the same year.
		n.Created = n.Created.AddDate(-n.Created.Year(), 0, 0)
		b, _ = json.Marshal(n)
	}
	return string(b)
}

func compareNames(a, b Node) int { return strings.Compare(a.Name, b.Name) }
