package policy

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// Holding returns p, but the pods in held keep the groups that they have in other plans: the plan
// of each pod is the value in held. A pod without an address there is left out, and so it is mute:
// it may be newer than that plan. Sets that p lacks are of these plans, so they do not follow pods.
// The result has no Revision. If held is empty, Holding returns p itself.
func (p *Plan) Holding(held map[Key]*Plan) *Plan {
	if len(held) == 0 {
		return p
	}
	part := *p
	part.Revision, part.Groups = "", map[string]*Group{}
	part.Chains, part.Members = map[string]*Chain{}, map[Key]*Member{}
	lacking := map[string]*Set{}
	// Several plans may have a set that p lacks. The order makes the choice the same each time.
	for _, key := range slices.SortedFunc(maps.Keys(p.Members), Key.compare) {
		m, from := p.Members[key], p
		if of := held[key]; of != nil {
			old := of.Members[key]
			if old == nil || len(old.Addrs) == 0 {
				continue
			}
			m, from = old.at(m), of
		}
		part.Members[key] = m
		part.addGroup(from, m.Group, lacking)
	}

	part.Sets = p.Sets.With(lacking)
	return &part
}

func (k Key) compare(other Key) int {
	return cmp.Or(k.Name.Compare(other.Name), strings.Compare(k.UID, other.UID))
}

// at returns the member with the addresses of another one.
func (m *Member) at(other *Member) *Member {
	if slices.Equal(m.Addrs, other.Addrs) {
		return m
	}
	moved := *m
	moved.Addrs = other.Addrs
	return &moved
}

// addGroup adds a group of the plan from with its chains to p, and to lacking the sets of these
// chains that p does not have.
func (p *Plan) addGroup(from *Plan, name string, lacking map[string]*Set) {
	g := from.Groups[name]
	p.Groups[name] = g
	for _, chain := range g.Chains {
		c := from.Chains[chain]
		if c == nil || p.Chains[chain] != nil {
			continue
		}
		p.Chains[chain] = c
		add := func(set string) {
			if p.Sets.Get(set) == nil {
				if s := from.Sets.Get(set); s != nil {
					lacking[set] = s
				}
			}
		}
		for _, lines := range [][]Line{c.Admin, c.Lines, c.Baseline} {
			for _, l := range lines {
				if add(l.Peer); l.Doubts() {
					add(SetKnown)
					add(SetRanges)
				}
			}
		}
	}
}
