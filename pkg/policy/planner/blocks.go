package planner

import (
	"fmt"
	"net/netip"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/arrange"
	"github.com/kubeveil/kubeveil/pkg/policy/compile"
)

// crossing returns the reason why a chain denies everything, because its blocks come to more than
// MaxBoxes boxes of one family. It returns "" if they do not.
func (p *Planner) crossing(d policy.Direction, chain string) string {
	if p.peers[chain] != nil || !p.partsOf(chain).copies.crossing {
		return "" // A chain in use was checked.
	}
	return fmt.Sprintf("%s: everything is denied, because the ipBlocks and ports of the pod's "+
		"policies overlap in more than %d places: write fewer rules with wide ipBlocks or port "+
		"ranges", d, arrange.MaxBoxes)
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
