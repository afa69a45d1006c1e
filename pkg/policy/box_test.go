package policy

import (
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func drawBoxes(t *rapid.T) (boxes []Box) {
	for range rapid.IntRange(0, 12).Draw(t, "boxes") {
		first := rapid.ByteRange(244, 255).Draw(t, "first")
		last := rapid.ByteRange(first, 255).Draw(t, "last")
		low := rapid.Uint16Range(65528, 65535).Draw(t, "low")
		boxes = append(boxes, Box{
			Range{netip.AddrFrom4([4]byte{255, 255, 255, first}),
				netip.AddrFrom4([4]byte{255, 255, 255, last})},
			Interval{rapid.SampledFrom([]Proto{TCP, UDP}).Draw(t, "proto"), low,
				rapid.Uint16Range(low, 65535).Draw(t, "high")}})
	}
	return boxes
}

// Every point is in one box if it was in any, and otherwise in none, whichever way boxes are cut.
func TestDisjointBoxesMatchTheSame(t *testing.T) {
	count := func(boxes []Box, a netip.Addr, proto Proto, port uint16) (n int) {
		for _, b := range boxes {
			if !a.Less(b.Peers.First) && !b.Peers.Last.Less(a) && b.Ports.has(proto, port) {
				n++
			}
		}
		return n
	}

	rapid.Check(t, func(t *rapid.T) {
		boxes := drawBoxes(t)
		best, ok := DisjointBoxes(boxes)
		if !ok {
			t.Fatal("few boxes are too many")
		}
		for name, out := range map[string][]Box{"best": best,
			"along ports": sweepBoxes(boxes, portSpan, joinPeers),
			"along peers": sweepBoxes(boxes, peerSpan, joinPorts)} {
			for last := 243; last <= 255; last++ {
				a := netip.AddrFrom4([4]byte{255, 255, 255, byte(last)})
				for port := 65527; port <= 65535; port++ {
					for _, proto := range []Proto{TCP, UDP, SCTP} {
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

// Many ranges of addresses with one port each, that cross many addresses with all ports each, need
// a box for each crossing.
func TestCrossingBoxesAreTooMany(t *testing.T) {
	grid := func(n int) (boxes []Box) {
		for i := range n {
			a := netip.AddrFrom4([4]byte{198, 18, byte(i >> 7), byte(i << 1)})
			boxes = append(boxes, Box{Range{a, a}, Interval{TCP, 0, 65535}},
				Box{Range{netip.IPv4Unspecified(), netip.AddrFrom4([4]byte{255, 255, 255, 255})},
					Interval{TCP, uint16(i) * 2, uint16(i) * 2}})
		}
		return boxes
	}
	if out, ok := DisjointBoxes(grid(100)); !ok || len(out) > 101*100 {
		t.Errorf("100 by 100: %d boxes, %t", len(out), ok)
	}
	if _, ok := DisjointBoxes(grid(1000)); ok {
		t.Error("1,000 by 1,000 is not too many")
	}
}

// A pod whose blocks and ports cross too often is denied in that direction, with a reason. A set
// that the kernel would refuse is never made.
func TestCrossingBlocksDeny(t *testing.T) {
	p := NewPlanner("here")
	pod := Pod{Name: Name{"a", "pod"}, UID: "1", Node: "here"}
	p.PutPod(pod)
	var rules []Rule
	for i := range 1000 {
		one := netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}), 32)
		rules = append(rules,
			Rule{Peers: []Peer{{Block: &Block{CIDR: one}}},
				Ports: []Port{{Proto: TCP, First: 1, Last: uint16(65000 - i)}}},
			Rule{Ports: []Port{{Proto: TCP, First: uint16(60 * i), Last: uint16(60*i + 1)}}})
	}
	p.PutPolicy(Policy{Name: Name{"a", "grid"}, Isolates: [2]bool{false, true},
		Rules: [2][]Rule{nil, rules}})
	m := p.Plan().Members[pod.key()]
	if m == nil || !strings.Contains(m.Problem, "cross in more than") {
		t.Fatalf("member %+v", m)
	}
	if v := p.Plan().judge(p.groups[m.Group], Flow{Proto: TCP, Port: 2}, Egress, netip.Addr{},
		netip.MustParseAddr("198.18.0.1"), DenyEgress); v != DenyEgress {
		t.Errorf("verdict %s", v)
	}
}
