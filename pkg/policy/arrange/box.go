package arrange

import (
	"cmp"
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
// family. DisjointBoxes sweeps along ports or along addresses, whichever cuts fewer boxes. ok is
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

// place is a point of the axis of a sweep: an address, or a protocol with a port. A port counts
// from 0 to 65536, so that the end of a range has a place.
type place struct {
	addr  netip.Addr
	proto policy.Proto
	port  int
	// beyond reports whether the place is behind the last address.
	beyond bool
}

func (p place) compare(q place) int {
	if p.beyond || q.beyond {
		return cmp.Compare(b2i(p.beyond), b2i(q.beyond))
	}
	return cmp.Or(p.addr.Compare(q.addr), cmp.Compare(p.proto, q.proto), cmp.Compare(p.port, q.port))
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// portSpan returns the place of a box's first port, and the place after its last port.
func portSpan(b Box) (first, end place) {
	return place{proto: b.Ports.Proto, port: int(b.Ports.First)},
		place{proto: b.Ports.Proto, port: int(b.Ports.Last) + 1}
}

// peerSpan returns the place of a box's first peer, and the place after its last peer.
func peerSpan(b Box) (first, end place) {
	next := b.Peers.Last.Next()
	return place{addr: b.Peers.First}, place{addr: next, beyond: !next.IsValid()}
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

// joinPeers returns the peers of pieces with the ports from first to before end.
func joinPeers(pieces []Box, first, end place) (out []Box) {
	slices.SortFunc(pieces, func(a, b Box) int { return a.Peers.First.Compare(b.Peers.First) })
	ports := policy.Interval{Proto: first.proto, First: uint16(first.port),
		Last: uint16(end.port - 1)}
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

// joinPorts returns the ports of pieces with the peers from first to before end.
func joinPorts(pieces []Box, first, end place) (out []Box) {
	slices.SortFunc(pieces, func(a, b Box) int { return a.Ports.Compare(b.Ports) })
	peers := policy.Range{First: first.addr, Last: pieces[0].Peers.Last}
	if !end.beyond {
		peers.Last = end.addr.Prev()
	}
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
