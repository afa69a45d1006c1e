package planner

import (
	"cmp"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/buddy"
)

// round is one Plan in progress.
type round struct {
	*Planner
	service.Changes
	whole   bool // false for a round of entry 0 alone
	swept   bool // sweepLeft was called
	touched map[service.FrontendKey]bool
	adding  map[service.FrontendKey]bool
	// goneSources are the source ranges without a use, unless a later service of the round has one.
	goneSources map[service.SourceRangeKey]bool
	freed       []buddy.Extent
}

// Plan decides about the noted services and returns the changes for the maps. The caller must make
// them before the next Plan. If that fails, it must call Adopt with the content of the maps. If
// many services are noted, Plan decides about some of them, and sets Again.
func (p *Planner) Plan() service.Changes {
	r := p.begin(true)
	if p.listed && !p.hold {
		p.listed = false
		r.Room = r.roomAhead()
	}
	for _, n := range r.due() {
		r.decideAgain(p.entries[n])
	}
	if p.sweep && (p.hold || !r.more()) {
		r.swept = true
		r.sweepLeft()
	}
	return r.end()
}

// more reports whether services besides entry 0 are noted, while the caller does not hold.
func (r *round) more() bool {
	n := r.dirty.len()
	if r.dirty.has(apiName) {
		n--
	}
	return n > 0 && !r.hold
}

// roomAhead returns the number of slots that are in use once all prepared decisions are in force.
func (p *Planner) roomAhead() uint32 {
	room := p.Sizes().BackendSlots
	for _, n := range p.dirty.names() {
		if d := p.entries[n].ready; d != nil {
			for _, g := range d.groups {
				if g.slots() > 0 {
					room += buddy.Extent{Count: uint32(g.slots())}.Size()
				}
			}
		}
	}
	return min(room, p.limits.BackendSlots)
}

// PlanAPIServer is Plan for entry 0 alone. So a failed write of another service does not hold back
// entry 0.
func (p *Planner) PlanAPIServer() service.Changes {
	r := p.begin(false)
	if p.dirty.has(apiName) {
		r.decideAgain(p.entries[apiName])
	}
	return r.end()
}

func (p *Planner) begin(whole bool) *round {
	for _, x := range p.freed {
		p.room.Give(x)
	}
	p.freed = nil
	r := &round{Planner: p, whole: whole, touched: make(map[service.FrontendKey]bool),
		adding:      make(map[service.FrontendKey]bool),
		goneSources: make(map[service.SourceRangeKey]bool)}
	return r
}

func (r *round) end() service.Changes {
	r.writeFrontends()
	r.drop()
	r.Planner.freed = r.freed
	for _, x := range r.freed {
		r.UnusedChunks = append(r.UnusedChunks, r.unuse(x)...)
	}
	wait := len(r.waiting) > 0 || r.dirty.has(apiName)
	r.Again = wait && len(r.freed)+len(r.DropFrontends)+len(r.DropSourceRanges) > 0 ||
		r.whole && r.more()
	return r.Changes
}

// due returns services that changed, and waiting services that may fit now, sorted by name. While
// the caller holds, it returns entry 0 alone.
func (r *round) due() []service.Name {
	if r.hold {
		if r.dirty.has(apiName) {
			return []service.Name{apiName}
		}
		return nil
	}
	names := r.dirty.some(r.most, func(n service.Name) turn { return r.entries[n].size(r.here) })
	for n, e := range r.waiting {
		if !r.dirty.has(n) && r.mayFit(e.full) {
			names = append(names, n)
		}
	}
	slices.SortFunc(names, compareName)
	return names
}

// mayFit reports whether there is now enough of the room that a service lacked.
func (r *round) mayFit(lacked *service.FullError) bool {
	switch lacked.Limit {
	case service.LimitFrontends:
		return len(r.frontends)+lacked.Want <= r.frontendsFor()
	case service.LimitSourceRanges:
		return len(r.sources)+lacked.Want <= int(r.limits.SourceRanges)
	}
	return r.room.Has(lacked.Want)
}

// compareName orders names, entry 0 first.
func compareName(a, b service.Name) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

func (r *round) decideAgain(e *entry) {
	want, lacked := e.want, e.want.groups
	if r.dirty.has(e.name) {
		want = r.decided(e)
		r.dirty.remove(e.name)
	}
	if e.full = r.fit(e, &want); e.full != nil {
		e.wholly()
		e.want, r.waiting[e.name] = want, e
		r.release(e, lacked)
		return
	}
	e.want = decision{}
	delete(r.waiting, e.name)
	r.replace(e, want)
	e.settle()
	r.release(e, lacked)
	if e.service == nil && e.api == nil && len(e.slices) == 0 {
		delete(r.entries, e.name)
	}
}

// decided returns the decision for e, which may be prepared.
func (r *round) decided(e *entry) decision {
	d := e.ready
	e.ready = nil
	if d != nil {
		return *d
	}
	if d, ok := r.edited(e); ok {
		return d
	}
	return decide(r.here, e)
}

// frontendsFor returns the number of frontends that services may have. Entry 0 may need room for
// its old and its new frontends at once.
func (r *round) frontendsFor() int { return int(r.limits.Frontends) - 2*service.MaxAPIFrontends }

// Replace replaces the decision of e by want, which has room.
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
			r.supersede(key, a, g)
			delete(r.adopted, g.id)
		}
		if o := old.groups[key]; o != nil {
			r.supersede(key, o, g)
		}
	}

	for key, o := range old.groups {
		if want.groups[key] == nil {
			r.supersede(key, o, &group{})
		}
	}

	for k := range want.sources {
		if !r.sources[k] {
			r.sources[k] = true
			r.SourceRanges = append(r.SourceRanges, k)
		}
		delete(r.goneSources, k)
	}

	for k := range old.sources {
		if !want.sources[k] {
			r.goneSources[k] = true
		}
	}

	r.replaceClaims(old.claims, want.claims)
}

// supersede replaces the group old of a service by g.
func (r *round) supersede(key groupKey, old, g *group) {
	r.free(old, g)
	r.LostUDP = r.LostUDP || key.protocol == service.UDP && !g.equal(old) && !g.keeps(old)
}

// free releases the extent of old, unless g has it now.
func (r *round) free(old, g *group) {
	if old.at.Count > 0 && old.at != g.at && old.at.First >= service.APISlots {
		r.freed = append(r.freed, old.at)
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
		want := service.Frontend{
			Revision: had.Revision, Group: g.id, Sources: c.sources,
			First: g.at.First, Count: uint32(g.backends.Len()), Draining: uint32(g.draining.Len()),
			Affinity: c.affinity, Flags: c.flags,
		}
		if ok && had == want {
			continue
		}

		r.revision++
		want.Revision = r.revision
		r.LostUDP = r.LostUDP || ok && had.Group != want.Group && key.Protocol == service.UDP
		r.frontends[key] = want
		r.Frontends.Put(key, want)
	}
}

// drop deletes the entries that the round noted.
func (r *round) drop() {
	for _, k := range r.DropFrontends {
		delete(r.frontends, k)
	}
	for k := range r.goneSources {
		delete(r.sources, k)
		r.DropSourceRanges = append(r.DropSourceRanges, k)
	}
	if e := r.entries[apiName]; r.swept && e != nil || !r.sweep {
		clear(r.apiHeld)
	}
	if e := r.entries[apiName]; e != nil {
		for _, g := range e.now.groups {
			if g.at.Count > 0 {
				r.apiHeld[g.at.First] = true
			}
		}
	}
}
