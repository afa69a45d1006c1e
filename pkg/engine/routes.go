package engine

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// routes is the table of allowed IPs: a binary trie with compressed paths for each family. Each
// prefix belongs to one peer.
type routes struct{ v4, v6 *node }

// node covers the addresses that begin with the first len bits of hi and lo.
type node struct {
	hi, lo uint64
	len    int
	peer   *peer // nil for a node that is only a branch
	child  [2]*node
}

// bitsOf returns an address as 128 bits, the first bit of the address first.
func bitsOf(a netip.Addr) (hi, lo uint64) {
	if a.Is4() {
		b := a.As4()
		return uint64(binary.BigEndian.Uint32(b[:])) << 32, 0
	}
	b := a.As16()
	return binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
}

// common returns the length of the common prefix of a and b, in bits.
func common(ahi, alo, bhi, blo uint64) int {
	if x := ahi ^ bhi; x != 0 {
		return bits.LeadingZeros64(x)
	}
	return 64 + bits.LeadingZeros64(alo^blo)
}

func bitAt(hi, lo uint64, i int) uint64 {
	if i < 64 {
		return hi >> (63 - i) & 1
	}
	return lo >> (127 - i) & 1
}

func (r *routes) root(a netip.Addr) **node {
	if a.Is4() {
		return &r.v4
	}
	return &r.v6
}

// lookup returns the peer of the longest prefix that contains the address, or nil if there is none.
func (r *routes) lookup(a netip.Addr) *peer {
	hi, lo := bitsOf(a)
	var best *peer
	for n := *r.root(a); n != nil; {
		if common(n.hi, n.lo, hi, lo) < n.len {
			break
		}
		if n.peer != nil {
			best = n.peer
		}
		if n.len == 128 {
			break
		}
		n = n.child[bitAt(hi, lo, n.len)]
	}
	return best
}

// insert assigns a masked prefix to a peer and returns the peer that had it, or nil.
func (r *routes) insert(p netip.Prefix, to *peer) (from *peer) {
	hi, lo := bitsOf(p.Addr())
	at := r.root(p.Addr())
	for {
		n := *at
		if n == nil {
			*at = &node{hi: hi, lo: lo, len: p.Bits(), peer: to}
			return nil
		}

		same := min(common(n.hi, n.lo, hi, lo), n.len, p.Bits())
		switch {
		case same == n.len && same == p.Bits():
			from, n.peer = n.peer, to
			return from
		case same == n.len:
			at = &n.child[bitAt(hi, lo, same)]
		case same == p.Bits():
			above := &node{hi: hi, lo: lo, len: same, peer: to}
			above.child[bitAt(n.hi, n.lo, same)] = n
			*at = above
			return nil
		default:
			fork := &node{hi: hi, lo: lo, len: same}
			fork.child[bitAt(n.hi, n.lo, same)] = n
			fork.child[bitAt(hi, lo, same)] = &node{hi: hi, lo: lo, len: p.Bits(), peer: to}
			*at = fork
			return nil
		}
	}
}

// remove removes a masked prefix. It does nothing if the prefix does not belong to the peer of.
func (r *routes) remove(p netip.Prefix, of *peer) {
	hi, lo := bitsOf(p.Addr())
	at := r.root(p.Addr())
	var above **node
	for n := *at; n != nil; n = *at {
		if n.len > p.Bits() || common(n.hi, n.lo, hi, lo) < n.len {
			return
		}
		if n.len == p.Bits() {
			break
		}
		above, at = at, &n.child[bitAt(hi, lo, n.len)]
	}
	n := *at
	if n == nil || n.peer != of {
		return
	}
	n.peer = nil
	prune(at)
	if above != nil {
		prune(above)
	}
}

// prune removes the node at *at if it has no peer and fewer than two children. Its child takes its
// place.
func prune(at **node) {
	n := *at
	if n == nil || n.peer != nil || n.child[0] != nil && n.child[1] != nil {
		return
	}
	*at = n.child[0]
	if *at == nil {
		*at = n.child[1]
	}
}
