package cluster

import (
	"net/netip"
	"slices"
	"sort"

	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// holding says which node holds what. No two nodes hold the same key, or prefixes that
// overlap.
type holding struct {
	keys map[wgkey.Public]string
	// prefixes do not overlap and are sorted by address.
	prefixes []heldPrefix
}

type heldPrefix struct {
	prefix netip.Prefix
	node   string
}

func newHolding() *holding {
	return &holding{keys: map[wgkey.Public]string{}}
}

// key is the holder of k, "" when there is none.
func (h *holding) key(k wgkey.Public) string { return h.keys[k] }

// overlaps are the held prefixes that overlap p, sorted by address.
func (h *holding) overlaps(p netip.Prefix) []heldPrefix {
	// Held prefixes do not overlap: only the last that begins before p can
	// reach into it, and those that p covers follow.
	i := h.search(p)
	if i > 0 && h.prefixes[i-1].prefix.Overlaps(p) {
		i--
	}
	end := i
	for end < len(h.prefixes) && h.prefixes[end].prefix.Overlaps(p) {
		end++
	}
	return h.prefixes[i:end]
}

func (h *holding) search(p netip.Prefix) int {
	return sort.Search(len(h.prefixes), func(i int) bool { return h.prefixes[i].prefix.Addr().Compare(p.Addr()) >= 0 })
}

// takeKey gives k to node unless another holds it.
func (h *holding) takeKey(k wgkey.Public, node string) {
	if h.keys[k] == "" {
		h.keys[k] = node
	}
}

// takePrefix gives p to node unless something of it is held.
func (h *holding) takePrefix(p netip.Prefix, node string) {
	if len(h.overlaps(p)) == 0 {
		h.prefixes = slices.Insert(h.prefixes, h.search(p), heldPrefix{p, node})
	}
}
