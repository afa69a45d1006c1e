package planner

import (
	"maps"

	"github.com/kubeveil/kubeveil/pkg/service"
)

// sweepLeft marks the unused entries of an earlier process for deletion. It walks all maps. Entries
// of a service that does not fit stay. Until all services are listed, only entries of entry 0 are
// deleted.
func (r *round) sweepLeft() {
	refused := make(map[uint64]bool)
	for _, e := range r.waiting {
		for _, g := range e.want.groups {
			refused[g.id] = true
		}
	}

	hosts := make(map[uint64]bool)
	for key, f := range r.frontends {
		if key.Scope == service.Host {
			hosts[f.Group] = true
		}
	}

	kept := func(group uint64) bool {
		return refused[group] || r.hold && !apiGroups[group] && !hosts[group]
	}
	sets := make(map[uint64][]*leftover) // the leftovers with each source set
	for key, f := range r.frontends {
		switch {
		case len(r.claims[key]) > 0:
		case !kept(f.Group):
			r.touched[key] = true
		case !r.hold:
			l := r.leftOf(f.Group)
			l.frontends = append(l.frontends, key)
			sets[f.Sources] = append(sets[f.Sources], l)
		}
	}

	for id, g := range r.adopted {
		if !kept(id) {
			r.free(g, &group{})
			delete(r.adopted, id)
		}
	}

	if r.hold {
		return // entry 0 has no sources
	}

	for id, list := range r.orphans {
		if !kept(id) {
			r.freed = append(r.freed, list...)
			delete(r.orphans, id)
		}
	}

	r.sweepSourceRanges(sets)
	r.sweep = false
}

func (r *round) leftOf(group uint64) *leftover {
	l := r.left[group]
	if l == nil {
		l = &leftover{}
		r.left[group] = l
	}
	return l
}

func (r *round) sweepSourceRanges(sets map[uint64][]*leftover) {
	live := make(map[service.SourceRangeKey]bool)
	for _, e := range r.entries {
		maps.Copy(live, e.now.sources)
	}
	for k := range r.sources {
		if live[k] {
			continue
		}
		for _, l := range sets[k.Number()] {
			l.sources = append(l.sources, k)
		}
		if len(sets[k.Number()]) == 0 {
			r.goneSources[k] = true
		}
	}
}

// release frees the old entries of groups for which e lacked room but no longer does, because e
// fits now or needs other groups.
func (r *round) release(e *entry, lacked map[groupKey]*group) {
	if r.sweep || len(lacked) == 0 {
		return
	}
	still := make(map[service.SourceRangeKey]bool)
	maps.Copy(still, e.now.sources)
	for _, g := range e.want.groups {
		if l := r.left[g.id]; l != nil {
			for _, k := range l.sources {
				still[k] = true
			}
		}
	}
	for key, g := range lacked {
		if e.want.groups[key] != nil {
			continue // the number is the same, so e still lacks room for this group
		}
		r.releaseGroup(g.id, still)
	}
}

// releaseGroup frees the old entries of one group. still holds the source ranges in use.
func (r *round) releaseGroup(id uint64, still map[service.SourceRangeKey]bool) {
	if g := r.adopted[id]; g != nil {
		r.free(g, &group{})
		delete(r.adopted, id)
	}
	r.freed = append(r.freed, r.orphans[id]...)
	delete(r.orphans, id)
	l := r.left[id]
	if l == nil {
		return
	}
	delete(r.left, id)
	for _, k := range l.frontends {
		r.touched[k] = true // the claimant has it
	}
	for _, k := range l.sources {
		if !still[k] {
			r.goneSources[k] = true
		}
	}
}
