package planner

import (
	"cmp"
	"maps"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/buddy"
)

// fit allocates room for all of want. If there is not enough, it allocates nothing and returns the
// reason. Entries that this round deletes still take room.
func (r *round) fit(e *entry, want *decision) *service.FullError {
	if e.api != nil {
		r.fitAPI(e, want)
		return nil
	}

	frontends := make(map[service.FrontendKey]bool)
	for _, c := range want.claims {
		if _, ok := r.frontends[c.key]; !ok && !r.adding[c.key] {
			frontends[c.key] = true
		}
	}

	if n := len(frontends); n > 0 && len(r.frontends)+len(r.adding)+n > r.frontendsFor() {
		return &service.FullError{Service: e.name, Limit: service.LimitFrontends,
			Size: r.limits.Frontends, Want: n}
	}

	sources := 0
	for k := range want.sources {
		if !r.sources[k] {
			sources++
		}
	}

	if sources > 0 && len(r.sources)+sources > int(r.limits.SourceRanges) {
		return &service.FullError{Service: e.name, Limit: service.LimitSourceRanges,
			Size: r.limits.SourceRanges, Want: sources}
	}
	return r.fitSlots(e, *want)
}

func (r *round) fitSlots(e *entry, want decision) *service.FullError {
	var taken []*group
	for _, key := range slices.SortedFunc(maps.Keys(want.groups), compareGroup) {
		g := want.groups[key]
		if r.keep(e, key, g) {
			continue
		}
		x, ok := r.take(g.slots())
		if !ok {
			for _, t := range taken {
				r.room.Give(t.at)
				r.unuse(t.at)
			}
			return &service.FullError{Service: e.name, Limit: service.LimitBackendSlots,
				Size: r.limits.BackendSlots,
				Want: int(buddy.Extent{Count: uint32(g.slots())}.Size())}
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
	if g.slots() == 0 {
		return true
	}
	old := e.now.groups[key]
	if old == nil {
		old = r.adopted[g.id]
	}
	if old == nil || !old.equal(g) {
		return false
	}
	g.at = old.at
	return true
}

func (r *round) writeBackends(g *group) {
	if g.backends.Len() > 0 {
		r.Runs = append(r.Runs, service.Run{First: g.at.First, Backends: g.backends})
	}
	if g.draining.Len() > 0 {
		r.Runs = append(r.Runs, service.Run{First: g.at.First + uint32(g.backends.Len()),
			Backends: g.draining})
	}
}
