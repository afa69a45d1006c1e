package sets

import (
	"slices"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/arrange"
)

// partLines is the number of lines of boxes in one part of a set. A pod that appears or disappears
// changes only the parts in which it is a peer.
const partLines = 64

// keepSets keeps the sets to which chains refer, and drops the others. It makes a set only if it is
// new or its peers changed.
func (p *Maker) keepSets(sets policy.SetMap) {
	old := p.sets
	p.sets, p.dependents = map[string]*made{}, map[string][]string{}
	keep := func(name string, peers []string, make func() *made) {
		same := old[name] != nil
		for _, peer := range peers {
			same = same && p.from.Get(peer) == sets.Get(peer)
			p.dependents[peer] = append(p.dependents[peer], name)
		}
		switch lasting := p.lasting[name]; {
		case same:
			p.sets[name] = old[name]
		case lasting != nil:
			p.sets[name] = lasting
		default:
			p.sets[name] = make()
		}
	}

	for name := range p.refer.peers {
		if s := sets.Get(name); s != nil {
			keep(name, []string{name}, func() *made { return &made{byFamily: peerSets(s)} })
		}
	}
	for name, peers := range p.refer.unions {
		if letterOf(peers[0]) == "b" {
			peers = nil // Blocks never change.
		}
		keep(name, peers, func() *made { return unite(sets, p.refer.unions[name]) })
	}
	for name, b := range p.refer.boxes {
		keep(name, b.changing(), func() *made { return b.make(sets) })
	}
	for name, m := range old {
		if p.sets[name] == nil && isLasting(name) {
			p.spare(name, m)
		}
	}
}

// remakeSets makes the parts of sets again that contain one of the changed sets of the plan.
func (p *Maker) remakeSets(sets policy.SetMap, changed []string) {
	is, dependents := map[string]bool{}, map[string]bool{}
	for _, peer := range changed {
		is[peer] = true
		for _, name := range p.dependents[peer] {
			dependents[name] = true
		}
	}

	for name := range dependents {
		b := p.refer.boxes[name]
		switch {
		case p.refer.unions[name] != nil:
			m := p.sets[name].copy()
			for i, peer := range p.refer.unions[name] {
				if is[peer] {
					m.setPart(i, partsOf(peerSets(sets.Get(peer))))
				}
			}
			p.sets[name] = m
		case len(b.Lines) > 0 && b.Kind == arrange.BoxPods:
			m := p.sets[name].copy()
			for i := range m.byFamily[0].Elements {
				if lines := b.part(i); slices.ContainsFunc(lines, func(l policy.Line) bool {
					return is[l.Peer]
				}) {
					m.setPart(i, b.elementsByFamily(lines, sets))
				}
			}
			p.sets[name] = m
		case len(b.Lines) > 0:
			p.sets[name] = b.make(sets)
		default:
			p.sets[name] = &made{byFamily: peerSets(sets.Get(name))}
		}
	}
}

// unite returns the union of a plan's sets, which are of one kind. peers are their names, sorted.
func unite(sets policy.SetMap, peers []string) *made {
	first := sets.Get(peers[0])
	if first.Kind == policy.KindBlock {
		all := &policy.Set{Kind: first.Kind}
		for _, name := range peers {
			all.Ranges = append(all.Ranges, sets.Get(name).Ranges...)
		}
		all.Ranges = policy.Join(all.Ranges)
		return &made{byFamily: peerSets(all)}
	}

	m := &made{byFamily: peerSets(&policy.Set{Kind: first.Kind})}
	m.grow(len(peers))
	for i, name := range peers {
		m.setPart(i, partsOf(peerSets(sets.Get(name))))
	}
	return m
}

// partsOf returns the elements of sets that are not unions.
func partsOf(byFamily []*Set) []Elements {
	out := make([]Elements, len(byFamily))
	for i, s := range byFamily {
		out[i] = s.Elements[0]
	}
	return out
}

// copy returns a copy whose parts may be changed. The sets of a content must not change.
func (m *made) copy() *made {
	out := &made{byFamily: make([]*Set, len(m.byFamily))}
	for f, s := range m.byFamily {
		own := *s
		own.Elements = slices.Clone(s.Elements)
		out.byFamily[f] = &own
	}
	return out
}

// grow makes room for n parts.
func (m *made) grow(n int) {
	for _, s := range m.byFamily {
		s.Elements = make(Union, n)
	}
}

// setPart sets one part, which has elements by family.
func (m *made) setPart(i int, part []Elements) {
	for f, s := range m.byFamily {
		s.Elements[i] = part[f]
	}
}

// changing returns the peers of lines that pods may change, sorted.
func (b Boxes) changing() (peers []string) {
	if b.Kind == arrange.BoxBlocks {
		return nil
	}
	for i, l := range b.Lines {
		if i == 0 || b.Lines[i-1].Peer != l.Peer {
			peers = append(peers, l.Peer)
		}
	}
	return peers
}

// make returns the sets of boxes.
func (b Boxes) make(sets policy.SetMap) *made {
	m := &made{byFamily: make([]*Set, len(Families))}
	if b.Kind == arrange.BoxPods {
		for i, f := range Families {
			m.byFamily[i] = f.boxSet(b.Kind)
		}
		m.grow((len(b.Lines) + partLines - 1) / partLines)
		for i := range m.byFamily[0].Elements {
			m.setPart(i, b.elementsByFamily(b.part(i), sets))
		}
		return m
	}

	for i, own := range b.elementsByFamily(b.Lines, sets) {
		if b.Kind == arrange.BoxBlocks && len(own) == 0 {
			continue
		}
		m.byFamily[i] = Families[i].boxSet(b.Kind)
		m.byFamily[i].Elements = Union{own}
	}
	return m
}

func (b Boxes) part(i int) []policy.Line {
	return b.Lines[i*partLines : min(len(b.Lines), (i+1)*partLines)]
}

func (b Boxes) elementsByFamily(lines []policy.Line, sets policy.SetMap) []Elements {
	out := make([]Elements, len(Families))
	for i, f := range Families {
		out[i] = b.elementsOf(lines, f, sets)
	}
	return out
}
