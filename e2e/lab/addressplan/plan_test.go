package addressplan

import (
	"net/netip"
	"slices"
	"testing"
)

// The parts of the plan do not overlap, and each has the addresses and pods of its nodes.
func TestPartsHaveTheirNodes(t *testing.T) {
	inside := func(ranges []netip.Prefix, p netip.Prefix) bool {
		return slices.ContainsFunc(ranges, func(r netip.Prefix) bool {
			return r == r.Masked() && r.Bits() <= p.Bits() && r.Contains(p.Addr())
		})
	}

	for _, f := range []Family{IPv4, IPv6, Dual} {
		first, second := f.Parts()
		for number := 1; number <= MaxNodes; number++ {
			own, other := first, second
			switch {
			case number > BesideNode:
				own, other = second, first
			case number > mostFirst:
				continue // no node of two clusters has it
			}
			for _, p := range f.PodPrefixes(number) {
				if !inside(own.Pods, p) || inside(other.Pods, p) {
					t.Errorf("%s: pods %s of node %d are in the wrong part", f, p, number)
				}
			}
			for _, a := range AddrsOf(f.Underlay(byte(NodeHost + number))) {
				p := netip.PrefixFrom(a, a.BitLen())
				if !inside(own.Nodes, p) || inside(other.Nodes, p) {
					t.Errorf("%s: address %s of node %d is in the wrong part", f, a, number)
				}
			}
		}
	}
}
