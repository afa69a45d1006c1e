package sets

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strconv"

	"github.com/google/nftables"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/arrange"
)

// Lines that share neither peers nor ports become elements of few sets of address . protocol .
// port, instead of a rule and a set for each. The kernel finds a set by walking a list, so the cost
// of many sets grows with their square. A packet pays for one search in each of these sets.
//
// Lines that never change have sets of their own, apart from lines that pods change. The kernel
// copies a whole set with intervals for each transaction that changes an element.

// boxPrefixes begin the names of sets of boxes.
var boxPrefixes = [arrange.BoxKinds]string{arrange.BoxBlocks: "xb", arrange.BoxPods: "xp",
	arrange.BoxPodRanges: "xr"}

// Boxes are the lines of one set, sorted.
type Boxes struct {
	Kind  arrange.BoxKind
	Lines []policy.Line
	// Name is the name of the set, without the suffix of a family.
	Name string
}

// BoxesOf returns the boxes of an arrangement, at most one of each kind.
func BoxesOf(a arrange.Arrangement) (out []Boxes) {
	for kind, lines := range a.Boxes {
		if len(lines) > 0 {
			b := Boxes{Kind: arrange.BoxKind(kind), Lines: lines}
			b.Name = b.nameOf()
			out = append(out, b)
		}
	}
	return out
}

// nameOf returns a hash of the lines with the prefix of the kind.
func (b Boxes) nameOf() string {
	text := make([]byte, 0, 40*len(b.Lines))
	for _, l := range b.Lines {
		text = append(append(text, l.Peer...), ' ')
		for _, n := range []int{int(l.Ports.Proto), int(l.Ports.First), int(l.Ports.Last)} {
			text = append(strconv.AppendInt(text, int64(n), 10), ' ')
		}
	}
	return boxPrefixes[b.Kind] + hashed(string(text))
}

// boxSet returns a set of boxes of a family without elements. Only a set of single points has no
// intervals.
func (f Family) boxSet(kind arrange.BoxKind) *Set {
	key, _ := nftables.ConcatSetType(f.Addr, nftables.TypeInetProto, nftables.TypeInetService)
	return &Set{Key: key, Concat: true, Interval: kind != arrange.BoxPods, Elements: Union{{}}}
}

// boxOf returns the key of a point: an address, a protocol and a port.
func boxOf(a netip.Addr, proto policy.Proto, port uint16) []byte {
	b := append(make([]byte, 0, 24), a.AsSlice()...)
	b = append(b, byte(proto), 0, 0, 0)
	return append(binary.BigEndian.AppendUint16(b, port), 0, 0)
}

// boxElement returns a box as an element of a set of a kind.
func boxElement(kind arrange.BoxKind, b arrange.Box) string {
	first := boxOf(b.Peers.First, b.Ports.Proto, b.Ports.First)
	if kind == arrange.BoxPods {
		return Key(first)
	}
	return KeyRange + string(append(first, boxOf(b.Peers.Last, b.Ports.Proto, b.Ports.Last)...))
}

// rangesOfPeer returns the addresses of a line's peer of one family as ranges.
func rangesOfPeer(peer *policy.Set, all bool, f Family) (out []policy.Range) {
	i := slices.IndexFunc(Families, func(g Family) bool { return g.Name == f.Name })
	if all {
		first, last := netip.IPv4Unspecified(), make([]byte, f.Size)
		if i == 1 {
			first = netip.IPv6Unspecified()
		}
		for j := range last {
			last[j] = 0xff
		}
		end, _ := netip.AddrFromSlice(last)
		return []policy.Range{{First: first, Last: end}}
	}
	if peer == nil {
		return nil
	}
	out = rangesOf(peer.Ranges, i)
	for _, a := range peer.Addrs {
		if IndexOf(a) == i {
			out = append(out, policy.Range{First: a, Last: a})
		}
	}
	return out
}

// elementsOf returns the elements of lines of a family. The planner has refused lines that make too
// many boxes.
func (b Boxes) elementsOf(lines []policy.Line, f Family, sets policy.SetMap) Elements {
	all := make([]arrange.Box, 0, len(lines))
	for _, l := range lines {
		for _, r := range rangesOfPeer(sets.Get(l.Peer), l.Peer == "", f) {
			all = append(all, arrange.Box{Peers: r, Ports: l.Ports})
		}
	}
	if b.Kind != arrange.BoxPods {
		all, _ = arrange.DisjointBoxes(all)
	}
	out := make(Elements, len(all))
	for _, box := range all {
		out[boxElement(b.Kind, box)] = true
	}
	return out
}

// Some reports whether the peer of any line may have addresses of a family. absent holds the blocks
// without such addresses.
func (b Boxes) Some(absent map[string]bool) bool {
	return slices.ContainsFunc(b.Lines, func(l policy.Line) bool { return !absent[l.Peer] })
}
