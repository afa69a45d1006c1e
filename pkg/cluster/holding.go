package cluster

import (
	"net/netip"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// holding maps keys and prefixes to the nodes that hold them. No two nodes hold the same key, or
// prefixes that overlap. Prefixes are looked up by hash at each length in use: clusters have one or
// two.
type holding struct {
	keys     map[wgkey.Public]string
	prefixes map[netip.Prefix]string
	// lengths are the lengths of prefixes, by family, in no order.
	lengths map[bool][]int
	// beneath are the held prefixes inside a requested one that no node holds. Each pair of family
	// and length in asked is complete.
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

// key returns the holder of k, or "" when there is none.
func (h *holding) key(k wgkey.Public) string { return h.keys[k] }

// overlaps returns the held prefixes that overlap p, sorted by address.
func (h *holding) overlaps(p netip.Prefix) []heldPrefix {
	longer := false
	for _, bits := range h.lengths[isLong(p)] {
		if bits > p.Bits() {
			longer = true
			continue
		}
		// Held prefixes do not overlap: with one that covers p there is no other.
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

// takeKey assigns k to node unless another holds it.
func (h *holding) takeKey(k wgkey.Public, node string) {
	if h.keys[k] == "" {
		h.keys[k] = node
	}
}

// takePrefix assigns p to node unless a part of it is held.
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
