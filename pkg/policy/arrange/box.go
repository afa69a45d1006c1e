package arrange

import (
	"cmp"
	"encoding/binary"
	"math"
	"net/netip"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// Box is one element of a set of address, protocol and port. It matches a range of peers on a range
// of ports of one protocol.
type Box struct {
	Peers policy.Range
	Ports policy.Interval
}

// MaxBoxes bounds the number of boxes that DisjointBoxes returns.
const MaxBoxes = 1 << 16

// DisjointBoxes returns sorted boxes that match the same packets as boxes and do not overlap,
// because the kernel refuses a set in which two elements overlap. All boxes must be of one address
// family. DisjointBoxes sweeps along ports or along addresses, whichever makes fewer pieces. ok is
// false if both ways need more than MaxBoxes.
func DisjointBoxes(boxes []Box) (out []Box, ok bool) {
	byPorts, byPeers := cuts(boxes, portSpan), cuts(boxes, peerSpan)
	switch {
	case min(byPorts, byPeers) > MaxBoxes:
		return nil, false
	case byPorts <= byPeers:
		out = sweepBoxes(boxes, portSpan, joinPeers)
	default:
		out = sweepBoxes(boxes, peerSpan, joinPorts)
	}
	slices.SortFunc(out, Box.compare)
	return out, true
}

func (b Box) compare(c Box) int {
	return cmp.Or(b.Peers.First.Compare(c.Peers.First), b.Ports.Compare(c.Ports))
}

// place is a point of the axis of a sweep as a number: an address, or a protocol with a port.
// Numbers are compared faster than addresses. The place behind the last address is a place too.
type place struct {
	high, low uint64
	// beyond reports whether the place is behind the last address of IPv6.
	beyond bool
}

func (p place) compare(q place) int {
	switch {
	case p.beyond != q.beyond && p.beyond:
		return 1
	case p.beyond != q.beyond:
		return -1
	case p.high != q.high:
		return cmp.Compare(p.high, q.high)
	}
	return cmp.Compare(p.low, q.low)
}

// portBits is the number of bits of a port in a place. A port counts from 0 to 65536, so that the
// end of a range has a place.
const portBits = 17

func placeOfPort(proto policy.Proto, port int) place {
	return place{low: uint64(proto)<<portBits | uint64(port)}
}

func (p place) port() int           { return int(p.low & (1<<portBits - 1)) }
func (p place) proto() policy.Proto { return policy.Proto(p.low >> portBits) }

func placeOfAddr(a netip.Addr) place {
	if a.Is4() {
		b := a.As4()
		return place{low: uint64(binary.BigEndian.Uint32(b[:]))}
	}
	b := a.As16()
	return place{high: binary.BigEndian.Uint64(b[:8]), low: binary.BigEndian.Uint64(b[8:])}
}

// addr returns the address of a family at a place.
func (p place) addr(is4 bool) netip.Addr {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], p.high)
	binary.BigEndian.PutUint64(b[8:], p.low)
	if is4 {
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	return netip.AddrFrom16(b)
}

// portSpan returns the place of a box's first port, and the place after its last port.
func portSpan(b Box) (first, end place) {
	return placeOfPort(b.Ports.Proto, int(b.Ports.First)),
		placeOfPort(b.Ports.Proto, int(b.Ports.Last)+1)
}

// peerSpan returns the place of a box's first peer, and the place after its last peer.
func peerSpan(b Box) (first, end place) {
	end = placeOfAddr(b.Peers.Last)
	if end.low++; end.low == 0 {
		end.high++
		end.beyond = end.high == 0
	}
	return placeOfAddr(b.Peers.First), end
}

// edge is where a box begins or ends.
type edge struct {
	at  place
	box int
	end bool
}

func edgesOf(boxes []Box, span func(Box) (first, end place)) []edge {
	edges := make([]edge, 0, 2*len(boxes))
	for i, b := range boxes {
		first, end := span(b)
		edges = append(edges, edge{first, i, false}, edge{end, i, true})
	}
	slices.SortFunc(edges, func(a, b edge) int { return a.at.compare(b.at) })
	return edges
}

// cuts returns the number of pieces into which a sweep cuts the boxes, before it joins any. It
// stops counting beyond MaxBoxes.
func cuts(boxes []Box, span func(Box) (first, end place)) (n int) {
	edges, open := edgesOf(boxes, span), 0
	for i, e := range edges {
		if e.end {
			open--
		} else {
			open++
		}
		if i+1 == len(edges) || edges[i+1].at != e.at {
			if n += open; n > MaxBoxes {
				return n
			}
		}
	}
	return n
}

// sweepBoxes cuts boxes at each edge of any of them, and joins the pieces between two edges.
func sweepBoxes(boxes []Box, span func(Box) (first, end place),
	join func(pieces []Box, first, end place) []Box) (out []Box) {
	edges := edgesOf(boxes, span)
	var open, pieces []Box
	place := make([]int, len(boxes)) // place[i] is the index of boxes[i] in open
	index := make([]int, 0, len(boxes))
	for i, e := range edges {
		if e.end {
			last := len(open) - 1
			at := place[e.box]
			open[at], index[at] = open[last], index[last]
			place[index[at]] = at
			open, index = open[:last], index[:last]
		} else {
			place[e.box] = len(open)
			open, index = append(open, boxes[e.box]), append(index, e.box)
		}
		if i+1 < len(edges) && edges[i+1].at != e.at && len(open) > 0 {
			pieces = append(pieces[:0], open...)
			out = append(out, join(pieces, e.at, edges[i+1].at)...)
		}
	}
	return out
}

// joinPeers returns the peers of pieces with the ports from first to end, without end.
func joinPeers(pieces []Box, first, end place) (out []Box) {
	slices.SortFunc(pieces, func(a, b Box) int { return a.Peers.First.Compare(b.Peers.First) })
	ports := policy.Interval{Proto: first.proto(), First: uint16(first.port()),
		Last: uint16(end.port() - 1)}
	for _, p := range pieces {
		last := len(out) - 1
		switch {
		case last < 0 || out[last].Peers.Last.Less(p.Peers.First) &&
			out[last].Peers.Last.Next() != p.Peers.First:
			out = append(out, Box{p.Peers, ports})
		case out[last].Peers.Last.Less(p.Peers.Last):
			out[last].Peers.Last = p.Peers.Last
		}
	}
	return out
}

// joinPorts returns the ports of pieces with the peers from first to end, without end.
func joinPorts(pieces []Box, first, end place) (out []Box) {
	slices.SortFunc(pieces, func(a, b Box) int { return a.Ports.Compare(b.Ports) })
	is4 := pieces[0].Peers.First.Is4()
	if end.low--; end.low == math.MaxUint64 {
		end.high--
	}
	peers := policy.Range{First: first.addr(is4), Last: end.addr(is4)}
	for _, p := range pieces {
		last := len(out) - 1
		switch {
		case last < 0 || out[last].Ports.Proto != p.Ports.Proto ||
			int(out[last].Ports.Last)+1 < int(p.Ports.First):
			out = append(out, Box{peers, p.Ports})
		default:
			out[last].Ports.Last = max(out[last].Ports.Last, p.Ports.Last)
		}
	}
	return out
}

// Pieces returns an upper bound of the number of boxes that DisjointBoxes returns for boxes. It
// stops counting beyond MaxBoxes.
func Pieces(boxes []Box) int { return min(cuts(boxes, portSpan), cuts(boxes, peerSpan)) }
