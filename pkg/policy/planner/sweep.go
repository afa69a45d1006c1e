package planner

import (
	"maps"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/compile"
)

// sweep forgets groups, chains and sets that nothing refers to, and fills sets that are new. It
// takes time in proportion to the members, and to the chains and sets that come and go.
func (p *Planner) sweep() {
	groups, chains := map[string]bool{}, map[string]bool{}
	for _, m := range p.members {
		groups[m.Group] = true
	}
	for name := range groups {
		for _, c := range p.groups[name].Chains {
			if c != "" {
				chains[c] = true
			}
		}
	}

	maps.DeleteFunc(p.groups, func(name string, _ *policy.Group) bool { return !groups[name] })
	maps.DeleteFunc(p.chains, func(name string, _ *policy.Chain) bool { return !chains[name] })
	maps.DeleteFunc(p.uses, func(key policy.Key, _ use) bool { return p.members[key] == nil })
	used := make(map[string]bool, len(p.uses))
	for _, u := range p.uses {
		used[u.memo] = true
	}
	maps.DeleteFunc(p.memo, func(key string, _ memo) bool { return !used[key] })
	p.sweepSets(chains)
	clear(p.defs)
	clear(p.parts)
	p.adopted = nil
}

// sweepSets keeps the sets of these chains and forgets the others.
func (p *Planner) sweepSets(chains map[string]bool) {
	var added []string
	for chain := range chains {
		if p.peers[chain] != nil {
			continue
		}
		parts := p.partsOf(chain)
		p.peers[chain], p.copies.byChain[chain] = parts.peers, parts.copies
		p.countCopies(chain, 1)
		for _, set := range p.peers[chain] {
			if p.lookedUp[set]++; p.lookedUp[set] == 1 {
				added = append(added, set)
			}
		}
	}
	for chain, peers := range p.peers {
		if chains[chain] {
			continue
		}
		delete(p.peers, chain)
		p.countCopies(chain, -1)
		delete(p.copies.byChain, chain)
		for _, set := range peers {
			if p.lookedUp[set]--; p.lookedUp[set] > 0 {
				continue
			}
			delete(p.lookedUp, set)
			if s := p.sets[set]; s != nil {
				delete(p.sets, set)
				p.index.remove(s)
				p.changed[set] = true
			}
		}
	}

	index := labelIndex{}
	for _, name := range added {
		if p.sets[name] == nil {
			p.fill(name, index)
		}
	}
}

// fill makes a new set and fills it.
func (p *Planner) fill(name string, index labelIndex) {
	def, frozen := p.definitionOf(name)
	if name == policy.SetKnown {
		def = &compile.Definition{Kind: policy.KindPods, Namespaces: &policy.Selector{}}
	}
	s := &members{def: def, pods: map[policy.Name]contribution{}, name: name, frozen: frozen}
	p.sets[name], p.changed[name] = s, true
	p.index.add(s)
	if s.def.OfPods() {
		p.eachCandidate(s.def, index, func(pod *policy.Pod) { p.place(s, pod) })
	}
	p.placeNodes(s)
}

// peersOf returns the names of the sets in which a chain looks up packets. It is never nil.
func peersOf(c *policy.Chain) []string {
	all := map[string]bool{}
	for _, lines := range [][]policy.Line{c.Admin, c.Lines, c.Baseline} {
		for _, l := range lines {
			all[l.Peer] = true
			if l.Action != policy.Accept && l.OfPods() {
				all[policy.SetKnown] = true
			}
		}
	}
	delete(all, "")
	return slices.AppendSeq(make([]string, 0, len(all)), maps.Keys(all))
}
