package planner

import (
	"cmp"
	"maps"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/buddy"
)

// Resize returns the changes to empty maps of other sizes after which they serve the same
// frontends, and the number of frontends without room. Entry 0 always fits. A frontend fits with
// all its slots and sources, or is left out. Sources of no frontend are left out: the next Plan
// adds those that a service has.
func (s MapContent) Resize(l service.Limits) (c service.Changes, without int) {
	r := resizing{from: s, limits: l, room: buddy.New(l.BackendSlots, service.APISlots),
		moved:   make(map[buddy.Extent]buddy.Extent),
		sources: make(map[uint64][]service.SourceRangeKey), placed: make(map[uint64]bool)}
	for _, k := range s.SourceRanges {
		r.sources[k.Number()] = append(r.sources[k.Number()], k)
	}
	for _, k := range slices.SortedFunc(maps.Keys(s.Frontends), r.order) {
		if !r.add(k) {
			without++
		}
	}
	return r.Changes, without
}

type resizing struct {
	service.Changes
	from    MapContent
	limits  service.Limits
	room    *buddy.Allocator
	moved   map[buddy.Extent]buddy.Extent       // the new place of each extent
	sources map[uint64][]service.SourceRangeKey // by set
	placed  map[uint64]bool                     // sets of sources in the changes
}

// order compares frontends: entry 0 first, then by group and revision.
func (r *resizing) order(a, b service.FrontendKey) int {
	x, y := r.from.Frontends[a], r.from.Frontends[b]
	return cmp.Or(compareBool(!isAPI(a, x), !isAPI(b, y)),
		cmp.Compare(x.Group, y.Group), cmp.Compare(x.Revision, y.Revision))
}

// add adds a frontend with its backends and sources, and reports whether there was room for all.
func (r *resizing) add(k service.FrontendKey) bool {
	f := r.from.Frontends[k]
	var sources []service.SourceRangeKey
	if !r.placed[f.Sources] {
		sources = r.sources[f.Sources]
	}
	frontends := int(r.limits.Frontends)
	if !isAPI(k, f) {
		frontends -= 2 * service.MaxAPIFrontends
	}
	if len(r.Frontends.Keys) >= frontends ||
		len(r.SourceRanges)+len(sources) > int(r.limits.SourceRanges) || !r.place(&f) {
		return false
	}

	r.Frontends.Put(k, f)
	r.SourceRanges = append(r.SourceRanges, sources...)
	r.placed[f.Sources] = true
	return true
}

// place adds a run with the backends of f, unless another frontend has the same extent, and sets
// the first slot of f. The slots of entry 0 keep their place. place reports whether there was room.
func (r *resizing) place(f *service.Frontend) bool {
	at, end := f.Extent()
	to, ok := r.moved[at]
	switch {
	case f.Count == 0 && f.Draining == 0:
		return true
	case ok:
		f.First = to.First
		return true
	case at.Count == 0 || end > uint64(len(r.from.Backends)):
		return false
	case end <= service.APISlots:
		to = at
	default:
		if to, ok = r.room.Take(int(at.Count)); !ok {
			return false
		}
	}

	r.moved[at], f.First = to, to.First
	r.Runs = append(r.Runs, service.Run{First: to.First,
		Backends: service.BackendsOf(r.from.Backends[at.First:end])})
	return true
}
