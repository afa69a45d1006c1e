package cluster

import (
	"net/netip"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// holding maps keys and prefixes to the nodes that hold them. No two nodes hold the same key, or
// prefixes that overlap. Prefixes are looked up in a map, once per prefix length in use. Clusters
// use one or two lengths.
type holding struct {
	keys     map[wgkey.Public]string
	prefixes map[netip.Prefix]string
	// lengths holds the lengths of prefixes in no order, by family; true means IPv6.
	lengths map[bool][]int
	// beneath holds the held prefixes inside shorter prefixes, by shorter prefix. It is complete
	// for the families and lengths in asked.
	beneath map[netip.Prefix][]netip.Prefix
	asked   map[lengthOf]bool
}

type lengthOf struct {
	v6   bool
	bits int
}

type heldPrefix struct {
	prefix netip.Prefix
	node   string
}

func newHolding() *holding {
	return &holding{
		keys: map[wgkey.Public]string{}, prefixes: map[netip.Prefix]string{},
		lengths: map[bool][]int{},
		beneath: map[netip.Prefix][]netip.Prefix{}, asked: map[lengthOf]bool{},
	}
}

// key returns the node that holds k, or "" if there is none.
func (h *holding) key(k wgkey.Public) string { return h.keys[k] }

// overlaps returns the held prefixes that overlap p, sorted by address.
func (h *holding) overlaps(p netip.Prefix) []heldPrefix {
	longer := false
	for _, bits := range h.lengths[isLong(p)] {
		if bits > p.Bits() {
			longer = true
			continue
		}
		// Held prefixes do not overlap, so if one covers p, no other overlaps p.
		around, _ := p.Addr().Prefix(bits)
		if node, ok := h.prefixes[around]; ok {
			return []heldPrefix{{around, node}}
		}
	}
	if !longer {
		return nil
	}

	h.ask(lengthOf{isLong(p), p.Bits()})
	inside := h.beneath[p]
	out := make([]heldPrefix, 0, len(inside))
	for _, q := range inside {
		out = append(out, heldPrefix{q, h.prefixes[q]})
	}
	slices.SortFunc(out, func(a, b heldPrefix) int {
		return a.prefix.Addr().Compare(b.prefix.Addr())
	})
	return out
}

// ask makes beneath complete for the prefixes of a length.
func (h *holding) ask(l lengthOf) {
	if h.asked[l] {
		return
	}
	h.asked[l] = true
	for p := range h.prefixes {
		h.putBeneath(l, p)
	}
}

func (h *holding) putBeneath(l lengthOf, p netip.Prefix) {
	if isLong(p) != l.v6 || p.Bits() <= l.bits {
		return
	}
	around, _ := p.Addr().Prefix(l.bits)
	h.beneath[around] = append(h.beneath[around], p)
}

// isLong reports whether the addresses of p have 128 bits.
func isLong(p netip.Prefix) bool { return p.Addr().BitLen() == 128 }

// takeKey assigns k to node unless a node holds it already.
func (h *holding) takeKey(k wgkey.Public, node string) {
	if h.keys[k] == "" {
		h.keys[k] = node
	}
}

// takePrefix assigns p to node unless it overlaps a held prefix.
func (h *holding) takePrefix(p netip.Prefix, node string) {
	if len(h.overlaps(p)) > 0 {
		return
	}
	h.prefixes[p] = node
	if l := h.lengths[isLong(p)]; !slices.Contains(l, p.Bits()) {
		h.lengths[isLong(p)] = append(l, p.Bits())
	}
	for l := range h.asked {
		h.putBeneath(l, p)
	}
}
