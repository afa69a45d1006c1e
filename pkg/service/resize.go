package service

import (
	"cmp"
	"maps"
	"slices"
)

// Resize returns the content for maps of other sizes that serves the same frontends, and the number
// of frontends without room. An extent keeps its place unless that is beyond the end of the new
// map. Entry 0 always fits. A frontend fits with all its slots, members and sources, or is left
// out.
func (s MapContent) Resize(l Limits) (resized MapContent, without int) {
	r := resizing{from: s, limits: l, room: newExtents(l.BackendSlots),
		moved:  make(map[extent]extent),
		placed: make(map[uint64]bool)}
	r.to = MapContent{Frontends: make(map[FrontendKey]Frontend), Members: make(map[MemberKey]Member)}
	r.place()
	r.members, r.sources = make(map[uint64][]MemberKey), make(map[uint64][]SourceRangeKey)
	for k := range s.Members {
		r.members[k.Group] = append(r.members[k.Group], k)
	}
	for _, k := range s.SourceRanges {
		r.sources[k.set()] = append(r.sources[k.set()], k)
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
	limits   Limits
	room     *extents
	moved    map[extent]extent // the new place of each extent
	members  map[uint64][]MemberKey
	sources  map[uint64][]SourceRangeKey // by set
	placed   map[uint64]bool             // sets of sources that are in to
}

// order compares frontends: entry 0 first, then by group and revision.
func (r *resizing) order(a, b FrontendKey) int {
	x, y := r.from.Frontends[a], r.from.Frontends[b]
	return cmp.Or(compareBool(!isAPI(a, x), !isAPI(b, y)),
		cmp.Compare(x.Group, y.Group), cmp.Compare(x.Revision, y.Revision))
}

// place allocates an extent for each extent in use. Extents that can keep their place come first.
func (r *resizing) place() {
	rest := make(map[extent]bool)
	for _, f := range r.from.Frontends {
		at := extent{f.First, f.Count}
		switch end := uint64(f.First) + uint64(f.Count); {
		case f.Count == 0 || end > uint64(len(r.from.Backends)) || r.moved[at] != extent{}:
		case f.First < apiSlots && end <= apiSlots, r.room.reserve(at):
			r.moved[at] = at
		case f.First >= apiSlots:
			rest[at] = true
		}
	}

	for _, at := range slices.SortedFunc(maps.Keys(rest), func(a, b extent) int {
		return cmp.Or(cmp.Compare(a.first, b.first), cmp.Compare(a.count, b.count))
	}) {
		if to, ok := r.room.take(int(at.count)); ok {
			r.moved[at] = to
		}
	}

	end := uint32(0)
	for _, to := range r.moved {
		end = max(end, to.first+to.count)
	}

	r.to.Backends = make([]Backend, end)
	for at, to := range r.moved {
		copy(r.to.Backends[to.first:], r.from.Backends[at.first:at.first+at.count])
	}
}

// add adds a frontend with its members and sources, and reports whether there was room for all.
func (r *resizing) add(k FrontendKey) bool {
	f := r.from.Frontends[k]
	to, ok := r.moved[extent{f.First, f.Count}]
	if f.Count > 0 && !ok {
		return false
	}

	var members []MemberKey
	for _, m := range r.members[f.Group] {
		if r.to.Members[m] == 0 {
			members = append(members, m)
		}
	}

	var sources []SourceRangeKey
	if !r.placed[f.Sources] {
		sources = r.sources[f.Sources]
	}

	frontends := int(r.limits.Frontends)
	if !isAPI(k, f) {
		frontends -= 2 * MaxAPIFrontends
	}
	if len(r.to.Frontends) >= frontends || len(r.to.Members)+len(members) > int(r.limits.Members) ||
		len(r.to.SourceRanges)+len(sources) > int(r.limits.SourceRanges) {
		return false
	}
	if f.Count > 0 {
		f.First = to.first
	}

	r.to.Frontends[k] = f
	for _, m := range members {
		r.to.Members[m] = r.from.Members[m]
	}

	r.to.SourceRanges = append(r.to.SourceRanges, sources...)
	r.placed[f.Sources] = true
	return true
}

// addHidden adds members and sources that no frontend refers to, as far as there is room. Their
// service has lost its frontends to other services.
func (r *resizing) addHidden() {
	for _, f := range r.from.Frontends {
		delete(r.members, f.Group)
		delete(r.sources, f.Sources)
	}
	for _, members := range r.members {
		for _, m := range members[:min(len(members), int(r.limits.Members)-len(r.to.Members))] {
			r.to.Members[m] = r.from.Members[m]
		}
	}
	for _, sources := range r.sources {
		r.to.SourceRanges = append(r.to.SourceRanges,
			sources[:min(len(sources), int(r.limits.SourceRanges)-len(r.to.SourceRanges))]...)
	}
}
