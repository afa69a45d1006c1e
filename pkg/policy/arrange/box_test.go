package arrange

import (
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

func drawBoxes(t *rapid.T) (boxes []Box) {
	for range rapid.IntRange(0, 12).Draw(t, "boxes") {
		first := rapid.ByteRange(244, 255).Draw(t, "first")
		last := rapid.ByteRange(first, 255).Draw(t, "last")
		low := rapid.Uint16Range(65528, 65535).Draw(t, "low")
		boxes = append(boxes, Box{
			policy.Range{First: netip.AddrFrom4([4]byte{255, 255, 255, first}),
				Last: netip.AddrFrom4([4]byte{255, 255, 255, last})},
			policy.Interval{Proto: rapid.SampledFrom([]policy.Proto{policy.TCP,
				policy.UDP}).Draw(t, "proto"), First: low,
				Last: rapid.Uint16Range(low, 65535).Draw(t, "high")}})
	}
	return boxes
}

// A point that is in any input box is in exactly one output box, and any other point is in none,
// along whichever axis boxes are cut.
func TestDisjointBoxesMatchTheSame(t *testing.T) {
	count := func(boxes []Box, a netip.Addr, proto policy.Proto, port uint16) (n int) {
		for _, b := range boxes {
			if !a.Less(b.Peers.First) && !b.Peers.Last.Less(a) && b.Ports.Has(proto, port) {
				n++
			}
		}
		return n
	}

	rapid.Check(t, func(t *rapid.T) {
		boxes := drawBoxes(t)
		best, ok := DisjointBoxes(boxes)
		if !ok {
			t.Fatal("few boxes count as too many")
		}
		for name, out := range map[string][]Box{"best": best,
			"along ports": sweepBoxes(boxes, portSpan, joinPeers),
			"along peers": sweepBoxes(boxes, peerSpan, joinPorts)} {
			for last := 243; last <= 255; last++ {
				a := netip.AddrFrom4([4]byte{255, 255, 255, byte(last)})
				for port := 65527; port <= 65535; port++ {
					for _, proto := range []policy.Proto{policy.TCP, policy.UDP, policy.SCTP} {
						want := min(1, count(boxes, a, proto, uint16(port)))
						if got := count(out, a, proto, uint16(port)); got != want {
							t.Fatalf("%s: %s %s %d is in %d boxes of %v, want %d", name, a, proto,
								port, got, out, want)
						}
					}
				}
			}
		}
	})
}

// Many address ranges with one port each, crossed with many addresses with all ports, need a box
// for each crossing.
func TestCrossingBoxesAreTooMany(t *testing.T) {
	grid := func(n int) (boxes []Box) {
		for i := range n {
			a := netip.AddrFrom4([4]byte{198, 18, byte(i >> 7), byte(i << 1)})
			boxes = append(boxes, Box{policy.Range{First: a, Last: a},
				policy.Interval{Proto: policy.TCP, First: 0, Last: 65535}},
				Box{policy.Range{First: netip.IPv4Unspecified(),
					Last: netip.AddrFrom4([4]byte{255, 255, 255, 255})},
					policy.Interval{Proto: policy.TCP, First: uint16(i) * 2, Last: uint16(i) * 2}})
		}
		return boxes
	}
	if out, ok := DisjointBoxes(grid(100)); !ok || len(out) > 101*100 {
		t.Errorf("100 by 100: %d boxes, %t", len(out), ok)
	}
	if _, ok := DisjointBoxes(grid(1000)); ok {
		t.Error("1,000 by 1,000 boxes do not count as too many")
	}
}
