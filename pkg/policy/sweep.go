package policy

import (
	"maps"
	"slices"
)

// sweep forgets groups, chains and sets that nothing refers to, and fills sets that are new.
func (p *Planner) sweep() {
	groups, chains, sets := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, m := range p.members {
		groups[m.Group] = true
	}
	for name := range groups {
		for _, c := range p.groups[name].Chains {
			if c == "" || chains[c] {
				continue
			}
			chains[c] = true
			for _, peer := range p.peersOf(c) {
				sets[peer] = true
				if peer == SetKnown {
					p.defs[SetKnown] = &definition{kind: KindPods, namespaces: &Selector{}}
				}
			}
		}
	}

	maps.DeleteFunc(p.groups, func(name string, _ *Group) bool { return !groups[name] })
	maps.DeleteFunc(p.chains, func(name string, _ *Chain) bool { return !chains[name] })
	maps.DeleteFunc(p.peers, func(name string, _ []string) bool { return !chains[name] })
	maps.DeleteFunc(p.uses, func(key Key, _ use) bool { return p.members[key] == nil })
	used := make(map[string]bool, len(p.uses))
	for _, u := range p.uses {
		used[u.memo] = true
	}
	maps.DeleteFunc(p.memo, func(key string, _ memo) bool { return !used[key] })
	maps.DeleteFunc(p.sets, func(name string, s *members) bool {
		if !sets[name] {
			p.index.remove(s)
			p.swept = true
		}
		return !sets[name]
	})
	index := labelIndex{}
	for name := range sets {
		if p.sets[name] != nil {
			continue
		}
		s := &members{def: p.defs[name], pods: map[Name]contribution{}, name: name}
		p.sets[name], p.swept = s, true
		p.index.add(s)
		if s.def.ofPods() {
			for pod := range p.candidates(s.def, index) {
				p.place(s, pod)
			}
		}
		p.placeNodes(s)
	}
	clear(p.defs)
}

// peersOf returns the names of the sets in which a chain looks up packets.
func (p *Planner) peersOf(chain string) []string {
	if peers, has := p.peers[chain]; has {
		return peers
	}
	all := map[string]bool{}
	c := p.chains[chain]
	for _, lines := range [][]Line{c.Admin, c.Lines, c.Baseline} {
		for _, l := range lines {
			all[l.Peer] = true
			if l.Action != Accept && ofPods(l) {
				all[SetKnown] = true
			}
		}
	}
	delete(all, "")
	p.peers[chain] = slices.Collect(maps.Keys(all))
	return p.peers[chain]
}
