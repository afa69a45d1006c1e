package service

import (
	"cmp"
	"maps"
	"slices"
)

// round is one Plan in progress.
type round struct {
	*Planner
	Changes
	whole   bool // false for a round of entry 0 alone
	touched map[FrontendKey]bool
	adding  map[FrontendKey]bool
	gone    struct {
		members map[MemberKey]bool
		sources map[SourceRangeKey]bool
	}
	freed []extent
}

// Plan decides about the noted services and returns the changes for the maps. The caller must make
// them before the next Plan. If that fails, it must call Adopt with the content of the maps.
func (p *Planner) Plan() Changes {
	r := p.begin(true)
	for _, n := range r.due() {
		r.decideAgain(p.entries[n])
	}
	if p.sweep {
		r.sweepLeft()
	}
	return r.end()
}

// PlanAPIServer is Plan for entry 0 alone. So a failed write of another service does not hold back
// entry 0.
func (p *Planner) PlanAPIServer() Changes {
	r := p.begin(false)
	if p.dirty[apiName] {
		r.decideAgain(p.entries[apiName])
	}
	return r.end()
}

func (p *Planner) begin(whole bool) *round {
	for _, x := range p.freed {
		p.room.give(x)
	}
	p.freed = nil
	r := &round{Planner: p, whole: whole, touched: make(map[FrontendKey]bool),
		adding: make(map[FrontendKey]bool)}
	r.gone.members, r.gone.sources = make(map[MemberKey]bool), make(map[SourceRangeKey]bool)
	return r
}

func (r *round) end() Changes {
	r.writeFrontends()
	r.drop()
	r.Planner.freed = r.freed
	wait := len(r.waiting) > 0 || r.dirty[apiName]
	r.Again = wait && len(r.freed)+len(r.DropFrontends)+len(r.DropMembers)+
		len(r.DropSourceRanges) > 0
	return r.Changes
}

// due returns the services that changed, and waiting services that may fit now, sorted by name.
func (r *round) due() []Name {
	names := slices.Collect(maps.Keys(r.dirty))
	for n, e := range r.waiting {
		if !r.dirty[n] && r.mayFit(e.full) {
			names = append(names, n)
		}
	}
	slices.SortFunc(names, compareName)
	return names
}

// mayFit reports whether there is now enough of the room that a service lacked.
func (r *round) mayFit(lacked *FullError) bool {
	switch lacked.Limit {
	case limitFrontends:
		return len(r.frontends)+lacked.Want <= r.frontendsFor()
	case limitMembers:
		return len(r.members)+lacked.Want <= int(r.limits.Members)
	case limitSourceRanges:
		return len(r.sources)+lacked.Want <= int(r.limits.SourceRanges)
	}
	return r.room.has(lacked.Want)
}

// compareName orders names, entry 0 first.
func compareName(a, b Name) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

func (r *round) decideAgain(e *entry) {
	want, lacked := e.want, e.want.groups
	if r.dirty[e.name] {
		want = decide(r.here, e)
		delete(r.dirty, e.name)
	}
	if e.full = r.fit(e, &want); e.full != nil {
		e.want, r.waiting[e.name] = want, e
		r.release(e, lacked)
		return
	}
	e.want = decision{}
	delete(r.waiting, e.name)
	r.replace(e, want)
	r.release(e, lacked)
	if e.service == nil && e.api == nil && len(e.slices) == 0 {
		delete(r.entries, e.name)
	}
}

// frontendsFor returns the number of frontends that services may have. Entry 0 may need room for
// its old and its new frontends at once.
func (r *round) frontendsFor() int { return int(r.limits.Frontends) - 2*MaxAPIFrontends }

// fit allocates room for all of want. If there is not enough, it allocates nothing and returns the
// reason. Entries that this round deletes still take room.
func (r *round) fit(e *entry, want *decision) *FullError {
	if e.api != nil {
		r.fitAPI(e, want)
		return nil
	}

	frontends := make(map[FrontendKey]bool)
	for _, c := range want.claims {
		if _, ok := r.frontends[c.key]; !ok && !r.adding[c.key] {
			frontends[c.key] = true
		}
	}

	if n := len(frontends); n > 0 && len(r.frontends)+len(r.adding)+n > r.frontendsFor() {
		return &FullError{e.name, limitFrontends, r.limits.Frontends, n}
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
		return &FullError{e.name, limitMembers, r.limits.Members, members}
	}

	sources := 0
	for k := range want.sources {
		if !r.sources[k] {
			sources++
		}
	}

	if sources > 0 && len(r.sources)+sources > int(r.limits.SourceRanges) {
		return &FullError{e.name, limitSourceRanges, r.limits.SourceRanges, sources}
	}
	return r.fitSlots(e, *want)
}

func (r *round) fitSlots(e *entry, want decision) *FullError {
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
			return &FullError{e.name, limitBackendSlots, r.limits.BackendSlots,
				1 << orderOf(uint32(len(g.backends)))}
		}
		g.at = x
		taken = append(taken, g)
	}
	for _, g := range taken {
		r.writeBackends(g)
	}
	return nil
}

func compareGroup(a, b groupKey) int {
	return cmp.Or(cmp.Compare(a.port, b.port), cmp.Compare(a.protocol, b.protocol),
		compareBool(a.v6, b.v6), compareBool(a.local, b.local))
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

// keep reports whether g needs no new backend slots: it has no backends, or they are unchanged.
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

func (r *round) writeBackends(g *group) {
	r.Backends.Keys = slices.Grow(r.Backends.Keys, len(g.backends))
	r.Backends.Values = append(r.Backends.Values, g.backends...)
	for i := range g.backends {
		r.Backends.Keys = append(r.Backends.Keys, g.at.first+uint32(i))
	}
}

// replace replaces the decision of e by want, which has room.
func (r *round) replace(e *entry, want decision) {
	old := e.now
	e.now = want
	if len(want.refused) > 0 {
		r.refusing[e.name] = true
	} else {
		delete(r.refusing, e.name)
	}

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
			r.SourceRanges = append(r.SourceRanges, k)
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

// free releases the extent of old, unless g has it now.
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
		if _, ok := r.frontends[c.key]; !ok {
			r.adding[c.key] = true
		}
		list := r.claims[c.key]
		i, _ := slices.BinarySearchFunc(list, c, claim.compare)
		r.claims[c.key] = slices.Insert(list, i, c)
	}
}

// writeFrontends writes the frontends that the round touched, with their new owners.
func (r *round) writeFrontends() {
	for key := range r.touched {
		had, ok := r.frontends[key]
		list := r.claims[key]
		if len(list) > 1 {
			r.contested[key] = true
		} else {
			delete(r.contested, key)
		}

		if len(list) == 0 {
			if ok {
				r.DropFrontends = append(r.DropFrontends, key)
			}
			continue
		}

		c := list[0]
		g := r.entries[c.owner].now.groups[c.group]
		want := Frontend{
			Revision: had.Revision, Group: g.id, Sources: c.sources,
			First: g.at.first, Count: g.at.count, Affinity: c.affinity, Flags: c.flags,
		}
		if ok && had == want {
			continue
		}

		r.revision++
		want.Revision = r.revision
		r.MovedUDP = r.MovedUDP || ok && had.Group != want.Group && key.Protocol == UDP
		r.frontends[key] = want
		r.Frontends.put(key, want)
	}
}

// drop deletes the entries that the round noted.
func (r *round) drop() {
	for _, k := range r.DropFrontends {
		delete(r.frontends, k)
	}
	for k := range r.gone.members {
		delete(r.members, k)
		r.DropMembers = append(r.DropMembers, k)
	}
	for k := range r.gone.sources {
		delete(r.sources, k)
		r.DropSourceRanges = append(r.DropSourceRanges, k)
	}
	if e := r.entries[apiName]; r.whole && e != nil || !r.sweep {
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
