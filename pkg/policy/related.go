package policy

import (
	"net/netip"
	"slices"
)

// judgeError judges an ICMP error about a known connection. Conntrack proves that the error goes to
// the sender of the packet that it quotes. It must come from that packet's destination, with two
// exceptions: nodes on the path inside the tunnel, and routers outside about packets to the outside.
func (p *Plan) judgeError(f Flow, groupOf func(netip.Addr) *Group) Verdict {
	_, node := slices.BinarySearchFunc(p.NodeAddrs, f.Src, netip.Addr.Compare)
	accept := f.Src == f.Quotes
	switch {
	case f.FromPod:
		accept = accept && groupOf(f.Src) != nil
	case !f.ToPod:
		accept = true
	case f.FromTunnel:
		accept = accept || node
	default:
		accept = !within(p.Inside, f.Quotes)
	}
	if accept {
		return Allow
	}
	return DenyRelated
}

// IsInside reports whether a pod or a node may have the address.
func (p *Plan) IsInside(a netip.Addr) bool { return within(p.Inside, a) }

// within reports whether a range has an address.
func within(ranges []Range, a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(r Range) bool { return r.has(a) })
}

func (r Range) has(a netip.Addr) bool {
	return r.First.BitLen() == a.BitLen() && !a.Less(r.First) && !r.Last.Less(a)
}

// Join sorts ranges and joins those that overlap or touch. It changes the slice.
func Join(ranges []Range) (out []Range) {
	slices.SortFunc(ranges, func(a, b Range) int { return a.First.Compare(b.First) })
	for _, r := range ranges {
		last := len(out) - 1
		switch {
		case last < 0 || out[last].Last.Less(r.First) && out[last].Last.Next() != r.First:
			out = append(out, r)
		case out[last].Last.Less(r.Last):
			out[last].Last = r.Last
		}
	}
	return out
}
