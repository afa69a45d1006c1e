package cluster

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// claimIndex finds the nodes that claim an address, a key or an overlapping prefix, whether they
// are believed or not. It knows each name once.
type claimIndex struct {
	addrs multimap[netip.Addr]
	keys  multimap[wgkey.Public]
	// prefixes are the claimed pod prefixes, sorted by address, length and node.
	prefixes []claimedPrefix
	// lengths counts the prefixes of each length.
	lengths map[lengthOf]int
	// kept holds the claims of the last good table of nodes that have no claim of their own.
	kept map[string]*Claim
}

type claimedPrefix struct {
	prefix netip.Prefix
	node   string
}

// newClaimIndex returns an index of nodes, which have different names.
func newClaimIndex(nodes []Node, last lookup) *claimIndex {
	x := &claimIndex{addrs: newMultimap[netip.Addr](len(nodes)),
		keys: newMultimap[wgkey.Public](len(nodes)), lengths: map[lengthOf]int{},
		kept: map[string]*Claim{}}
	for _, n := range nodes {
		x.put(n, last)
		for _, p := range claimedPrefixes(n) {
			x.prefixes = append(x.prefixes, claimedPrefix{p, n.Name})
			x.lengths[lengthOf{isLong(p), p.Bits()}]++
		}
	}
	slices.SortFunc(x.prefixes, compareClaimed)
	return x
}

// put adds the addresses and keys of n. If n has no claim, it may keep the claim in last.
func (x *claimIndex) put(n Node, last lookup) {
	for _, a := range listedAddrs(n) {
		x.addrs.put(a, n.Name)
	}
	if n.Claim == nil {
		if l, known := last.node(n.Name); known && l.Claim != nil {
			x.kept[n.Name] = l.Claim
		}
	}
	for _, k := range x.claimedKeys(n) {
		x.keys.put(k.Public, n.Name)
	}
}

// remove removes the addresses and keys of n.
func (x *claimIndex) remove(n Node) {
	for _, a := range listedAddrs(n) {
		x.addrs.remove(a, n.Name)
	}
	for _, k := range x.claimedKeys(n) {
		x.keys.remove(k.Public, n.Name)
	}
	delete(x.kept, n.Name)
}

func (x *claimIndex) claimedKeys(n Node) []Key {
	c := n.Claim
	if c == nil {
		c = x.kept[n.Name]
	}
	if c == nil {
		return nil
	}
	return c.Keys
}

// putPrefixes adds the pod prefixes of n.
func (x *claimIndex) putPrefixes(n Node) {
	for _, p := range claimedPrefixes(n) {
		c := claimedPrefix{p, n.Name}
		i, _ := slices.BinarySearchFunc(x.prefixes, c, compareClaimed)
		x.prefixes = slices.Insert(x.prefixes, i, c)
		x.lengths[lengthOf{isLong(p), p.Bits()}]++
	}
}

// removePrefixes removes the pod prefixes of n.
func (x *claimIndex) removePrefixes(n Node) {
	for _, p := range claimedPrefixes(n) {
		i, _ := slices.BinarySearchFunc(x.prefixes, claimedPrefix{p, n.Name}, compareClaimed)
		x.prefixes = slices.Delete(x.prefixes, i, i+1)
		l := lengthOf{isLong(p), p.Bits()}
		if x.lengths[l]--; x.lengths[l] == 0 {
			delete(x.lengths, l)
		}
	}
}

// related calls found with the name of each node that claims something of n, possibly several
// times, and with the name of n itself. It stops when found returns false.
func (x *claimIndex) related(n Node, found func(name string) bool) {
	for _, a := range listedAddrs(n) {
		if !x.addrs.each(a, found) {
			return
		}
	}
	for _, k := range x.claimedKeys(n) {
		if !x.keys.each(k.Public, found) {
			return
		}
	}
	for _, p := range claimedPrefixes(n) {
		if !x.overlapping(p, found) {
			return
		}
	}
}

// overlapping calls found with the nodes whose prefixes overlap p. It returns false if found did.
func (x *claimIndex) overlapping(p netip.Prefix, found func(name string) bool) bool {
	// Prefixes inside p follow each other.
	for _, c := range x.from(p) {
		if !p.Contains(c.prefix.Addr()) {
			break
		}
		if !found(c.node) {
			return false
		}
	}
	for l := range x.lengths {
		if l.v6 != isLong(p) || l.bits >= p.Bits() {
			continue
		}
		around, _ := p.Addr().Prefix(l.bits)
		for _, c := range x.from(around) {
			if c.prefix != around {
				break
			}
			if !found(c.node) {
				return false
			}
		}
	}
	return true
}

// from returns the prefixes from p on.
func (x *claimIndex) from(p netip.Prefix) []claimedPrefix {
	i, _ := slices.BinarySearchFunc(x.prefixes, claimedPrefix{prefix: p}, compareClaimed)
	return x.prefixes[i:]
}

func compareClaimed(a, b claimedPrefix) int {
	return cmp.Or(a.prefix.Addr().Compare(b.prefix.Addr()),
		cmp.Compare(a.prefix.Bits(), b.prefix.Bits()), strings.Compare(a.node, b.node))
}

// claimedPrefixes returns the valid pod prefixes of n, in canonical form.
func claimedPrefixes(n Node) []netip.Prefix {
	all := canonicalPrefixes(n.PodPrefixes)
	invalid := func(p netip.Prefix) bool { return !p.IsValid() }
	if slices.ContainsFunc(all, invalid) {
		return slices.DeleteFunc(slices.Clone(all), invalid)
	}
	return all
}

// multimap holds the names of nodes by key. Most keys have one.
type multimap[K comparable] struct {
	first map[K]string
	more  map[K][]string
}

func newMultimap[K comparable](size int) multimap[K] {
	return multimap[K]{make(map[K]string, size), map[K][]string{}}
}

// put adds name to k, unless k has it.
func (m multimap[K]) put(k K, name string) {
	first, has := m.first[k]
	switch {
	case !has:
		m.first[k] = name
	case first != name && !slices.Contains(m.more[k], name):
		m.more[k] = append(m.more[k], name)
	}
}

// remove removes name from k, if k has it.
func (m multimap[K]) remove(k K, name string) {
	first, has := m.first[k]
	more := m.more[k]
	switch {
	case !has:
		return
	case first != name:
		more = slices.DeleteFunc(more, func(n string) bool { return n == name })
	case len(more) == 0:
		delete(m.first, k)
		return
	default:
		m.first[k], more = more[0], more[1:]
	}
	if m.more[k] = more; len(more) == 0 {
		delete(m.more, k)
	}
}

// each calls found with the names of k until it returns false. It returns false if found did.
func (m multimap[K]) each(k K, found func(name string) bool) bool {
	first, has := m.first[k]
	if !has {
		return true
	}
	if !found(first) {
		return false
	}
	for _, name := range m.more[k] {
		if !found(name) {
			return false
		}
	}
	return true
}
