package planner

import (
	"net/netip"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// SetNodeAddrs sets the addresses of all nodes.
func (p *Planner) SetNodeAddrs(addrs []netip.Addr) {
	sorted := slices.SortedFunc(slices.Values(addrs), netip.Addr.Compare)
	if sorted = slices.Compact(sorted); !slices.Equal(sorted, p.nodeAddrs) {
		p.nodeAddrs = sorted
		p.setInside()
	}
}

// setInside sets inside to a new slice with the ranges of all addresses of pods and nodes. Earlier
// plans keep the old slice.
func (p *Planner) setInside() {
	inside := make([]policy.Range, 0, len(p.nodeAddrs)+len(p.prefixes))
	for _, a := range p.nodeAddrs {
		inside = append(inside, policy.Range{First: a, Last: a})
	}
	for _, prefix := range p.prefixes {
		if prefix.IsValid() {
			inside = append(inside, policy.Range{First: prefix.Masked().Addr(),
				Last: policy.LastOf(prefix)})
		}
	}
	p.inside = policy.Join(inside)
}
