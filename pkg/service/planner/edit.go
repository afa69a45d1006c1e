package planner

import (
	"encoding/binary"
	"maps"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/service"
)

// maxEdits bounds the backends that edited changes. Beyond it, decide is as fast.
const maxEdits = 512

// edit notes the present state of a slice that is about to change.
func (e *entry) edit(name string) {
	if e.whole {
		return
	}
	if _, had := e.edits[name]; had {
		return
	}
	if e.edits == nil {
		e.edits = make(map[string]*service.Slice)
	}
	e.edits[name] = e.slices[name]
}

// wholly notes that the next decision about e must be made from all of it.
func (e *entry) wholly() { e.whole, e.edits = true, nil }

// settle notes that now is the decision about the present service and slices.
func (e *entry) settle() { e.whole, e.edits = false, nil }

// edited returns the decision about e, made from the one in force and the slices that changed
// since. It looks for each changed backend in all slices, since an endpoint may be in two. So its
// work grows with the service, but only by a look at each address and a copy of 4 bytes. It returns
// false if decide must decide: if something else changed, or if a backend may be eligible because
// of others. decide is its oracle.
func (p *Planner) edited(e *entry) (d decision, ok bool) {
	if e.whole || e.api != nil || e.service == nil || len(e.edits) == 0 || e.hinted() {
		return d, false
	}
	d = e.now
	d.groups = maps.Clone(d.groups)
	for key, g := range d.groups {
		if key.local {
			return d, false
		}
		if d.groups[key], ok = p.editedGroup(e, key, g); !ok {
			return d, false
		}
	}
	return d, true
}

// hinted reports whether an endpoint of e has hints, now or before the edits.
func (e *entry) hinted() bool {
	for _, s := range e.edits {
		if s != nil && len(s.Hints) > 0 {
			return true
		}
	}
	for _, s := range e.slices {
		if len(s.Hints) > 0 {
			return true
		}
	}
	return false
}

// editedGroup returns the group that replaces g, or g if its backends did not change.
func (p *Planner) editedGroup(e *entry, key groupKey, g *group) (*group, bool) {
	found := changedBy(p.here, e, key)
	if len(found) == 0 {
		return g, true
	}
	if g.lowest != rankReady || len(found) > maxEdits {
		return nil, false
	}
	p.find(e, key, found)

	var gone, chosen, rest []service.Backend
	drains := key.protocol == service.UDP || e.service.Affinity > 0
	for at, c := range found {
		gone = append(gone, at)
		switch {
		case c.rank == rankReady:
			chosen = append(chosen, c.slot)
		case c.rank != rankNone && drains:
			rest = append(rest, c.slot)
		}
	}
	for _, list := range [][]service.Backend{gone, chosen, rest} {
		slices.SortFunc(list, service.CompareBackend)
	}

	next := &group{id: g.id, lowest: rankReady, backends: g.backends.Replace(gone, chosen),
		draining: g.draining.Replace(gone, rest)}
	return next, next.backends.Len() > 0
}

// placeOf returns the backend with the address and port of b alone.
func placeOf(b service.Backend) service.Backend {
	return service.Backend{Addr: b.Addr, Port: b.Port}
}

// changedBy returns the backends of a group that the edits of e changed, with the rank 0. Beyond
// maxEdits it returns some of them.
func changedBy(h here, e *entry, key groupKey) map[service.Backend]candidate {
	found := make(map[service.Backend]candidate)
	for name, was := range e.edits {
		before, after := candidatesIn(h, was, key), candidatesIn(h, e.slices[name], key)
		for at, c := range before {
			if after[at] != c {
				found[at] = candidate{}
			}
		}
		for at, c := range after {
			if before[at] != c {
				found[at] = candidate{}
			}
		}
		if len(found) > maxEdits {
			break
		}
	}
	return found
}

// candidatesIn returns the candidates of a group in a slice, which may be nil.
func candidatesIn(h here, s *service.Slice, key groupKey) map[service.Backend]candidate {
	all := make(map[service.Backend]candidate)
	if s == nil {
		return all
	}
	port := portOf(s, key.port, key.protocol)
	for i := range s.Endpoints.Len() {
		if c, ok := candidateOf(h, s, i, port, key.v6); ok && c.better(all[placeOf(c.slot)]) {
			all[placeOf(c.slot)] = c
		}
	}
	return all
}

// find sets the candidates in found to the best that the slices of e have.
func (p *Planner) find(e *entry, key groupKey, found map[service.Backend]candidate) {
	var filter [1 << 6]uint64 // a Bloom filter of the addresses in found
	for at := range found {
		low := binary.BigEndian.Uint16(at.Addr[14:])
		filter[low>>6&63] |= 1 << (low & 63)
	}
	for _, s := range e.slices {
		port := portOf(s, key.port, key.protocol)
		if port == 0 {
			continue
		}
		for i := range s.Endpoints.Len() {
			if low := s.Endpoints.Low(i); filter[low>>6&63]&(1<<(low&63)) == 0 {
				continue
			}
			c, ok := candidateOf(p.here, s, i, port, key.v6)
			if !ok {
				continue
			}
			if best, is := found[placeOf(c.slot)]; is && c.better(best) {
				found[placeOf(c.slot)] = c
			}
		}
	}
}
