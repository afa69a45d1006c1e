package service

import (
	"cmp"
	"maps"
	"slices"
)

// round is one Plan on its way.
type round struct {
	*Planner
	Changes
	touched map[FrontKey]bool
	adding  map[FrontKey]bool
	gone    struct {
		members map[MemberKey]bool
		sources map[SourceKey]bool
	}
	refused map[uint64]bool // groups of services that do not fit
	freed   []extent
}

// Plan decides about what changed and gives the writes that bring the maps
// there. They must be made before the next Plan; if they cannot all be, Adopt what then is in the maps.
func (p *Planner) Plan() Changes {
	for _, x := range p.freed {
		p.room.give(x)
	}
	p.freed = nil
	r := &round{Planner: p, touched: make(map[FrontKey]bool), adding: make(map[FrontKey]bool), refused: make(map[uint64]bool)}
	r.gone.members, r.gone.sources = make(map[MemberKey]bool), make(map[SourceKey]bool)
	for _, n := range slices.SortedFunc(maps.Keys(p.dirty), compareName) {
		r.decideAgain(p.entries[n])
	}
	if p.sweep {
		r.sweepLeft()
	}
	r.writeFronts()
	r.drop()
	p.freed = r.freed
	r.Again = len(r.refused) > 0 && len(r.freed)+len(r.DropFronts)+len(r.DropMembers)+len(r.DropSources) > 0
	return r.Changes
}

// compareName has entry 0 first.
func compareName(a, b Name) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

func (r *round) decideAgain(e *entry) {
	want := decide(r.here, e)
	if e.full = r.fit(e, want); e.full != nil {
		for _, g := range want.groups {
			r.refused[g.id] = true
		}
		return // and stays dirty: room may come
	}
	r.replace(e, want)
	delete(r.dirty, e.name)
	if e.service == nil && e.api == nil && len(e.slices) == 0 {
		delete(r.entries, e.name)
	}
}

// fit finds room for all of want or for nothing. What is to be deleted in this
// round still counts.
func (r *round) fit(e *entry, want decision) error {
	if e.api != nil {
		r.fitAPI(e, want)
		return nil
	}
	fronts := make(map[FrontKey]bool)
	for _, c := range want.claims {
		if _, ok := r.fronts[c.key]; !ok && !r.adding[c.key] {
			fronts[c.key] = true
		}
	}
	// Twice, since entry 0 may have old and new frontends at once.
	if n := len(fronts); n > 0 && len(r.fronts)+len(r.adding)+n > int(r.limits.Fronts)-2*MaxAPIFronts {
		return &FullError{e.name, "Fronts", r.limits.Fronts, n}
	}
	members := 0
	for _, g := range want.groups {
		for k := range g.members {
			if _, ok := r.members[k]; !ok {
				members++
			}
		}
	}
	if members > 0 && len(r.members)+members > int(r.limits.Members) {
		return &FullError{e.name, "Members", r.limits.Members, members}
	}
	sources := 0
	for k := range want.sources {
		if !r.sources[k] {
			sources++
		}
	}
	if sources > 0 && len(r.sources)+sources > int(r.limits.Sources) {
		return &FullError{e.name, "Sources", r.limits.Sources, sources}
	}
	return r.fitSlots(e, want)
}

func (r *round) fitSlots(e *entry, want decision) error {
	var taken []*group
	for _, key := range slices.SortedFunc(maps.Keys(want.groups), compareGroup) {
		g := want.groups[key]
		if r.keep(e, key, g) {
			continue
		}
		x, ok := r.room.take(len(g.backends))
		if !ok {
			for _, t := range taken {
				r.room.give(t.at)
			}
			return &FullError{e.name, "Slots", r.limits.Slots, 1 << orderOf(uint32(len(g.backends)))}
		}
		g.at = x
		taken = append(taken, g)
	}
	for _, g := range taken {
		r.writeSlots(g)
	}
	return nil
}

// fitAPI takes a block of entry 0 that nobody reads.
func (r *round) fitAPI(e *entry, want decision) {
	for key, g := range want.groups {
		if r.keep(e, key, g) {
			continue
		}
		first := uint32(0)
		if key.v6 {
			first = apiSlots / 2
		}
		// All are held only after changes failed half-made three times in a row. Then the last is used:
		// rather a moment of two versions than no API server.
		for last := first + (apiBlocks-1)<<apiOrder; first < last && r.apiHeld[first]; {
			first += 1 << apiOrder
		}
		g.at = extent{first, uint32(len(g.backends))}
		r.writeSlots(g)
	}
}

func compareGroup(a, b groupKey) int {
	return cmp.Or(cmp.Compare(a.port, b.port), cmp.Compare(a.protocol, b.protocol), compareBool(a.v6, b.v6), compareBool(a.local, b.local))
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// keep is whether g needs no new slots: it has no backends, or these are where they were.
func (r *round) keep(e *entry, key groupKey, g *group) bool {
	if len(g.backends) == 0 {
		return true
	}
	old := e.now.groups[key]
	if old == nil {
		old = r.adopted[g.id]
	}
	if old == nil || !slices.Equal(old.backends, g.backends) {
		return false
	}
	g.at = old.at
	return true
}

func (r *round) writeSlots(g *group) {
	r.Slots.Keys = slices.Grow(r.Slots.Keys, len(g.backends))
	r.Slots.Values = append(r.Slots.Values, g.backends...)
	for i := range g.backends {
		r.Slots.Keys = append(r.Slots.Keys, g.at.first+uint32(i))
	}
}

// replace puts want in the place of what e is. It has room.
func (r *round) replace(e *entry, want decision) {
	old := e.now
	e.now = want
	for key, g := range want.groups {
		if a := r.adopted[g.id]; a != nil {
			r.free(a, g)
			delete(r.adopted, g.id)
		}
		if o := old.groups[key]; o != nil {
			r.free(o, g)
		}
		r.putMembers(g)
	}
	for key, o := range old.groups {
		g := want.groups[key]
		if g == nil {
			r.free(o, &group{})
		}
		for k := range o.members {
			if g == nil || g.members[k] == 0 {
				r.gone.members[k] = true
			}
		}
	}
	for k := range want.sources {
		if !r.sources[k] {
			r.sources[k] = true
			r.Sources = append(r.Sources, k)
		}
		delete(r.gone.sources, k)
	}
	for k := range old.sources {
		if !want.sources[k] {
			r.gone.sources[k] = true
		}
	}
	r.replaceClaims(old.claims, want.claims)
}

// free gives back what old had, unless g has it now.
func (r *round) free(old, g *group) {
	if old.at.count > 0 && old.at != g.at && old.at.first >= apiSlots {
		r.freed = append(r.freed, old.at)
	}
}

func (r *round) putMembers(g *group) {
	for k, v := range g.members {
		delete(r.gone.members, k)
		had := r.members[k]
		if had == v {
			continue
		}
		r.members[k] = v
		if had == Eligible {
			r.LateMembers.put(k, v)
		} else {
			r.Members.put(k, v)
		}
	}
}

func (r *round) replaceClaims(old, want []claim) {
	for _, c := range old {
		r.touched[c.key] = true
		rest := slices.DeleteFunc(r.claims[c.key], func(o claim) bool { return o.owner == c.owner })
		if len(rest) == 0 {
			delete(r.claims, c.key)
		} else {
			r.claims[c.key] = rest
		}
	}
	for _, c := range want {
		r.touched[c.key] = true
		if _, ok := r.fronts[c.key]; !ok {
			r.adding[c.key] = true
		}
		list := r.claims[c.key]
		i, _ := slices.BinarySearchFunc(list, c, claim.compare)
		r.claims[c.key] = slices.Insert(list, i, c)
	}
}

// writeFronts settles who has what was touched.
func (r *round) writeFronts() {
	for key := range r.touched {
		had, ok := r.fronts[key]
		list := r.claims[key]
		if len(list) == 0 {
			if ok {
				r.DropFronts = append(r.DropFronts, key)
			}
			continue
		}
		c := list[0]
		g := r.entries[c.owner].now.groups[c.group]
		want := Front{
			Revision: had.Revision, Group: g.id, Sources: c.sources,
			First: g.at.first, Count: g.at.count, Affinity: c.affinity, Flags: c.flags,
		}
		if ok && had == want {
			continue
		}
		r.revision++
		want.Revision = r.revision
		r.fronts[key] = want
		r.Fronts.put(key, want)
	}
}

// kept is whether what an earlier process left of a group stays: its service does not fit, or is not known yet.
func (r *round) kept(group uint64) bool { return r.refused[group] || r.hold && !apiGroups[group] }

// sweepLeft notes what an earlier process left that nobody wants. What belongs
// to a service that does not fit stays with it.
func (r *round) sweepLeft() {
	live, keptSets := make(map[uint64]*group), make(map[uint64]bool)
	liveSources := make(map[SourceKey]bool)
	for _, e := range r.entries {
		for _, g := range e.now.groups {
			live[g.id] = g
		}
		maps.Copy(liveSources, e.now.sources)
	}
	for key, f := range r.fronts {
		if len(r.claims[key]) > 0 {
			continue
		}
		if r.kept(f.Group) {
			keptSets[f.Sources] = true
			continue
		}
		r.touched[key] = true
	}
	for id, g := range r.adopted {
		if !r.kept(id) {
			r.free(g, &group{})
			delete(r.adopted, id)
		}
	}
	for k := range r.members {
		if g := live[k.Group]; !r.kept(k.Group) && (g == nil || g.members[k] == 0) {
			r.gone.members[k] = true
		}
	}
	for k := range r.sources {
		if !liveSources[k] && !keptSets[k.set()] {
			r.gone.sources[k] = true
		}
	}
	if len(r.refused) == 0 && !r.hold {
		r.freed = append(r.freed, r.orphans...)
		r.orphans, r.sweep = nil, false
	}
}

// drop takes out of the maps what the round noted.
func (r *round) drop() {
	for _, k := range r.DropFronts {
		delete(r.fronts, k)
	}
	for k := range r.gone.members {
		delete(r.members, k)
		r.DropMembers = append(r.DropMembers, k)
	}
	for k := range r.gone.sources {
		delete(r.sources, k)
		r.DropSources = append(r.DropSources, k)
	}
	if e := r.entries[apiName]; e != nil || !r.sweep {
		clear(r.apiHeld)
	}
	if e := r.entries[apiName]; e != nil {
		for _, g := range e.now.groups {
			if g.at.count > 0 {
				r.apiHeld[g.at.first] = true
			}
		}
	}
}
