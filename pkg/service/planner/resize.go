package planner

import (
	"cmp"
	"maps"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/buddy"
)

// Resize returns the content for maps of other sizes that serves the same frontends, and the number
// of frontends without room. An extent keeps its place unless that is beyond the end of the new
// map. Entry 0 always fits. A frontend fits with all its slots and sources, or is left out.
func (s MapContent) Resize(l service.Limits) (resized MapContent, without int) {
	r := resizing{from: s, limits: l, room: buddy.New(l.BackendSlots, service.APISlots),
		moved:  make(map[buddy.Extent]buddy.Extent),
		placed: make(map[uint64]bool)}
	r.to = MapContent{Frontends: make(map[service.FrontendKey]service.Frontend)}
	r.place()
	r.sources = make(map[uint64][]service.SourceRangeKey)
	for _, k := range s.SourceRanges {
		r.sources[k.Number()] = append(r.sources[k.Number()], k)
	}
	for _, k := range slices.SortedFunc(maps.Keys(s.Frontends), r.order) {
		if !r.add(k) {
			without++
		}
	}
	r.addHidden()
	return r.to, without
}

type resizing struct {
	from, to MapContent
	limits   service.Limits
	room     *buddy.Allocator
	moved    map[buddy.Extent]buddy.Extent       // the new place of each extent
	sources  map[uint64][]service.SourceRangeKey // by set
	placed   map[uint64]bool                     // sets of sources that are in to
}

// order compares frontends: entry 0 first, then by group and revision.
func (r *resizing) order(a, b service.FrontendKey) int {
	x, y := r.from.Frontends[a], r.from.Frontends[b]
	return cmp.Or(compareBool(!isAPI(a, x), !isAPI(b, y)),
		cmp.Compare(x.Group, y.Group), cmp.Compare(x.Revision, y.Revision))
}

// place allocates an extent for each extent in use. Extents that can keep their place come first.
func (r *resizing) place() {
	rest := make(map[buddy.Extent]bool)
	for _, f := range r.from.Frontends {
		at, end := f.Extent()
		switch {
		case at.Count == 0 || end > uint64(len(r.from.Backends)) || r.moved[at] != buddy.Extent{}:
		case f.First < service.APISlots && end <= service.APISlots, r.room.Reserve(at):
			r.moved[at] = at
		case f.First >= service.APISlots:
			rest[at] = true
		}
	}

	for _, at := range slices.SortedFunc(maps.Keys(rest), func(a, b buddy.Extent) int {
		return cmp.Or(cmp.Compare(a.First, b.First), cmp.Compare(a.Count, b.Count))
	}) {
		if to, ok := r.room.Take(int(at.Count)); ok {
			r.moved[at] = to
		}
	}

	end := uint32(0)
	for _, to := range r.moved {
		end = max(end, to.First+to.Count)
	}

	r.to.Backends = make([]service.Backend, end)
	for at, to := range r.moved {
		copy(r.to.Backends[to.First:], r.from.Backends[at.First:at.First+at.Count])
	}
}

// add adds a frontend with its sources, and reports whether there was room for all.
func (r *resizing) add(k service.FrontendKey) bool {
	f := r.from.Frontends[k]
	at, _ := f.Extent()
	to, ok := r.moved[at]
	if (f.Count > 0 || f.Draining > 0) && !ok {
		return false
	}

	var sources []service.SourceRangeKey
	if !r.placed[f.Sources] {
		sources = r.sources[f.Sources]
	}

	frontends := int(r.limits.Frontends)
	if !isAPI(k, f) {
		frontends -= 2 * service.MaxAPIFrontends
	}
	if len(r.to.Frontends) >= frontends ||
		len(r.to.SourceRanges)+len(sources) > int(r.limits.SourceRanges) {
		return false
	}
	if ok {
		f.First = to.First
	}

	r.to.Frontends[k] = f
	r.to.SourceRanges = append(r.to.SourceRanges, sources...)
	r.placed[f.Sources] = true
	return true
}

// addHidden adds sources that no frontend refers to, as far as there is room. Their
// service has lost its frontends to other services.
func (r *resizing) addHidden() {
	for _, f := range r.from.Frontends {
		delete(r.sources, f.Sources)
	}
	for _, sources := range r.sources {
		r.to.SourceRanges = append(r.to.SourceRanges,
			sources[:min(len(sources), int(r.limits.SourceRanges)-len(r.to.SourceRanges))]...)
	}
}
