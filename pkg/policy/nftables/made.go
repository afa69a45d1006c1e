package nftables

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
func (p *maker) keepSets(sets policy.SetMap) {
	old := p.sets
	p.sets, p.dependents = map[string]*made{}, map[string][]string{}
	keep := func(name string, peers []string, make func() *made) {
		same := old[name] != nil
		for _, peer := range peers {
			same = same && p.from.Get(peer) == sets.Get(peer)
			p.dependents[peer] = append(p.dependents[peer], name)
		}
		if same {
			p.sets[name] = old[name]
		} else {
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
}

// remakeSets makes the parts of sets again that contain one of the changed sets of the plan.
func (p *maker) remakeSets(sets policy.SetMap, changed []string) {
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
		case len(b.lines) > 0 && b.kind == arrange.BoxPods:
			m := p.sets[name].copy()
			for i := range m.byFamily[0].elements {
				if lines := b.part(i); slices.ContainsFunc(lines, func(l policy.Line) bool {
					return is[l.Peer]
				}) {
					m.setPart(i, b.elementsByFamily(lines, sets))
				}
			}
			p.sets[name] = m
		case len(b.lines) > 0:
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
func partsOf(byFamily []*set) []elements {
	out := make([]elements, len(byFamily))
	for i, s := range byFamily {
		out[i] = s.elements[0]
	}
	return out
}

// copy returns a copy whose parts may be changed. The sets of a content must not change.
func (m *made) copy() *made {
	out := &made{byFamily: make([]*set, len(m.byFamily))}
	for f, s := range m.byFamily {
		own := *s
		own.elements = slices.Clone(s.elements)
		out.byFamily[f] = &own
	}
	return out
}

// grow makes room for n parts.
func (m *made) grow(n int) {
	for _, s := range m.byFamily {
		s.elements = make(union, n)
	}
}

// setPart sets one part, which has elements by family.
func (m *made) setPart(i int, part []elements) {
	for f, s := range m.byFamily {
		s.elements[i] = part[f]
	}
}

// changing returns the peers of lines that pods may change, sorted.
func (b boxes) changing() (peers []string) {
	if b.kind == arrange.BoxBlocks {
		return nil
	}
	for i, l := range b.lines {
		if i == 0 || b.lines[i-1].Peer != l.Peer {
			peers = append(peers, l.Peer)
		}
	}
	return peers
}

// make returns the sets of boxes.
func (b boxes) make(sets policy.SetMap) *made {
	m := &made{byFamily: make([]*set, len(families))}
	if b.kind == arrange.BoxPods {
		for i, f := range families {
			m.byFamily[i] = f.boxSet(b.kind)
		}
		m.grow((len(b.lines) + partLines - 1) / partLines)
		for i := range m.byFamily[0].elements {
			m.setPart(i, b.elementsByFamily(b.part(i), sets))
		}
		return m
	}

	for i, own := range b.elementsByFamily(b.lines, sets) {
		if b.kind == arrange.BoxBlocks && len(own) == 0 {
			continue
		}
		m.byFamily[i] = families[i].boxSet(b.kind)
		m.byFamily[i].elements = union{own}
	}
	return m
}

func (b boxes) part(i int) []policy.Line {
	return b.lines[i*partLines : min(len(b.lines), (i+1)*partLines)]
}

func (b boxes) elementsByFamily(lines []policy.Line, sets policy.SetMap) []elements {
	out := make([]elements, len(families))
	for i, f := range families {
		out[i] = b.elementsOf(lines, f, sets)
	}
	return out
}
