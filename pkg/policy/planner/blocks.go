package planner

import (
	"net/netip"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/arrange"
	"github.com/kubeveil/kubeveil/pkg/policy/compile"
)

// crossTooOften reports whether the blocks of lines come to more than MaxBoxes boxes of one family.
func crossTooOften(lines []policy.Line, defs map[string]*compile.Definition) bool {
	const few = 256 // They make at most half as many boxes as their square.
	if len(lines) <= few {
		return false
	}
	lines = slices.Compact(slices.SortedFunc(slices.Values(lines), arrange.CompareLines))
	for _, boxes := range blockBoxes(arrange.Arrange(lines, false).Boxes[arrange.BoxBlocks], defs) {
		if arrange.Pieces(boxes) > arrange.MaxBoxes {
			return true
		}
	}
	return false
}

// blockBoxes returns lines with blocks as boxes, by family. They may overlap.
func blockBoxes(lines []policy.Line, defs map[string]*compile.Definition) (boxes [2][]arrange.Box) {
	for _, l := range lines {
		ranges := []policy.Range{allOf(false), allOf(true)}
		if l.Peer != "" {
			ranges, _ = compile.RangesOf(*defs[l.Peer].Block) // compile checked it
		}
		for _, r := range ranges {
			i := 0
			if r.First.Is6() {
				i = 1
			}
			boxes[i] = append(boxes[i], arrange.Box{Peers: r, Ports: l.Ports})
		}
	}
	return boxes
}

// allOf returns all addresses of a family.
func allOf(v6 bool) policy.Range {
	if v6 {
		return policy.Range{First: netip.IPv6Unspecified(),
			Last: policy.LastOf(netip.PrefixFrom(netip.IPv6Unspecified(), 0))}
	}
	return policy.Range{First: netip.IPv4Unspecified(),
		Last: policy.LastOf(netip.PrefixFrom(netip.IPv4Unspecified(), 0))}
}
