package planner

import (
	"maps"

	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/buddy"
)

// MapContent is the content of the maps, as an earlier process left it.
type MapContent struct {
	Frontends map[service.FrontendKey]service.Frontend
	// Backends are the slots from 0 on, at least up to the last one that Frontends use.
	Backends     []service.Backend
	SourceRanges []service.SourceRangeKey
	// Revision is above each revision that a frontend ever had. Sockets and flows remember the
	// revision of a frontend for as long as they live, also when the frontend is gone.
	Revision uint64
}

// Adopt sets the content of the maps, after a start with pinned maps and after changes that failed
// in part. All services must be known by then: the next Plan decides about each again and deletes
// entries without a use. A service that does not fit then keeps its own entries. Another service
// may get a frontend that both claim.
func (p *Planner) Adopt(s MapContent) {
	p.frontends, p.sources = make(map[service.FrontendKey]service.Frontend),
		make(map[service.SourceRangeKey]bool)
	maps.Copy(p.frontends, s.Frontends)
	for _, k := range s.SourceRanges {
		p.sources[k] = true
	}
	p.claims, p.contested, p.refusing = make(map[service.FrontendKey][]claim),
		make(map[service.FrontendKey]bool),
		make(map[service.Name]bool)
	p.room, p.freed = buddy.New(p.limits.BackendSlots, service.APISlots), nil
	p.inUse = make(map[uint32]uint32)
	p.orphans = make(map[uint64][]buddy.Extent)
	p.adopted, p.apiHeld = make(map[uint64]*group), make(map[uint32]bool)
	p.waiting, p.left = make(map[service.Name]*entry), make(map[uint64]*leftover)
	p.revision = max(p.revision, s.Revision)
	for _, f := range s.Frontends {
		p.revision = max(p.revision, f.Revision)
		p.adoptExtent(f, s.Backends)
	}
	for n, e := range p.entries {
		e.now, e.full, e.want = decision{}, nil, decision{}
		e.wholly()
		p.dirty.note(n)
	}
	p.sweep = true
}

// adoptExtent reserves the extent of a frontend. If the extent is not valid, adoptExtent reserves
// nothing, and the frontend is written again.
func (p *Planner) adoptExtent(f service.Frontend, all []service.Backend) {
	at, end := f.Extent()
	known := p.adopted[f.Group]
	if at.Count == 0 || end > uint64(len(all)) || (known != nil && known.at == at) {
		return
	}
	if f.First < service.APISlots {
		p.apiHeld[f.First] = true
		if end > service.APISlots || at.Count > service.MaxAPIServers {
			return
		}
	} else {
		if !p.room.Reserve(at) {
			return
		}
		p.use(at)
	}
	if known != nil {
		// An earlier Apply failed in part: some frontends of the group point elsewhere.
		if f.First >= service.APISlots {
			p.orphans[f.Group] = append(p.orphans[f.Group], at)
		}
		return
	}

	drains := f.First + f.Count
	p.adopted[f.Group] = &group{id: f.Group, at: at,
		backends: service.BackendsOf(all[f.First:drains]),
		draining: service.BackendsOf(all[drains:end])}
}
