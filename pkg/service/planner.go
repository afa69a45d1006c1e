package service

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// Planner holds the current services and endpoints, and the content of the maps. Put and Delete
// methods only note a change. Plan decides about the noted services.
type Planner struct {
	here    here
	limits  Limits
	entries map[Name]*entry
	dirty   map[Name]bool
	// waiting are the services that did not fit. Their decision is kept until there is room.
	waiting map[Name]*entry
	// refusing are the services with ports that the table does not support. contested are the
	// frontends that several services claim.
	refusing  map[Name]bool
	contested map[FrontendKey]bool
	services  int // that are known
	tunnels   []netip.AddrPort
	// claims are in force. The first claim of a list has the frontend.
	claims map[FrontendKey][]claim

	// The content of the maps, once the changes of the last Plan are made.
	frontends map[FrontendKey]Frontend
	members   map[MemberKey]Member
	sources   map[SourceRangeKey]bool
	revision  uint64

	room    *extents
	freed   []extent        // by the last Plan; they have no reader once its changes are made
	apiHeld map[uint32]bool // blocks of entry 0 that are read

	// The entries that an earlier process left and that no service has claimed yet. After a sweep,
	// left has the entries that stay because their service does not fit, by group.
	sweep   bool
	hold    bool
	adopted map[uint64]*group // by id
	orphans map[uint64][]extent
	left    map[uint64]*leftover
}

// leftover holds the entries of a group that an earlier process left and whose service does not
// fit.
type leftover struct {
	frontends []FrontendKey
	members   []MemberKey
	sources   []SourceRangeKey
}

// entry is a service. Its object and its slices arrive separately, in any order.
type entry struct {
	name    Name
	service *Service
	slices  map[string]*Slice
	api     *APIServer // of entry 0 only
	now     decision   // in force
	full    *FullError // why want is not in force yet; nil if now is up to date
	want    decision   // the current decision, while full is set
}

// apiName is entry 0. No namespace has an empty name.
var apiName = Name{"", "api-server"}

// New returns a Planner for empty maps of these sizes. node is this node's name. The error is
// ErrLimits.
func New(node string, limits Limits) (*Planner, error) {
	switch {
	case limits.BackendSlots&(limits.BackendSlots-1) != 0 || limits.BackendSlots < 2*apiSlots:
		return nil, fmt.Errorf("%w: %d slots: want a power of two of at least %d", ErrLimits,
			limits.BackendSlots, 2*apiSlots)
	case limits.Frontends < 3*MaxAPIFrontends:
		return nil, fmt.Errorf("%w: %d frontends: want at least %d", ErrLimits, limits.Frontends,
			3*MaxAPIFrontends)
	case limits.Members == 0 || limits.SourceRanges == 0:
		return nil, fmt.Errorf("%w: %d members and %d sources: want some of each", ErrLimits,
			limits.Members, limits.SourceRanges)
	}
	p := &Planner{here: here{node: node}, limits: limits, entries: make(map[Name]*entry),
		dirty: make(map[Name]bool)}
	p.Adopt(MapContent{})
	return p, nil
}

func (p *Planner) entry(n Name) *entry {
	e := p.entries[n]
	if e == nil {
		e = &entry{name: n, slices: make(map[string]*Slice)}
		p.entries[n] = e
	}
	p.dirty[n] = true
	return e
}

// PutService adds or replaces a service. The Planner owns the memory of s afterwards.
func (p *Planner) PutService(s Service) {
	e := p.entry(s.Name)
	if e.service == nil {
		p.services++
	}
	e.service = &s
}

// DeleteService removes a service. A missing service is not an error.
func (p *Planner) DeleteService(n Name) {
	if e := p.entries[n]; e != nil && e.service != nil {
		e.service = nil
		p.services--
		p.dirty[n] = true
	}
}

// PutSlice adds or replaces a slice, before or after its service. The Planner owns the
// memory of s afterwards.
func (p *Planner) PutSlice(s Slice) { p.entry(s.Service).slices[s.Name] = &s }

// DeleteSlice removes a slice. A missing slice is not an error.
func (p *Planner) DeleteSlice(service Name, slice string) {
	if e := p.entries[service]; e != nil {
		delete(e.slices, slice)
		p.dirty[service] = true
	}
}

// SetAPIServer sets entry 0. It always fits. Other services cannot claim the addresses of its
// servers as external addresses.
func (p *Planner) SetAPIServer(a APIServer) {
	p.entry(apiName).api = &a
	p.reserve()
}

// SetTunnels reserves the UDP endpoints of the nodes' tunnels: a datagram that veil-wg sends
// there is never translated.
func (p *Planner) SetTunnels(endpoints []netip.AddrPort) {
	p.tunnels = slices.Clone(endpoints)
	p.reserve()
}

// reserve computes the frontends that external addresses may not claim, and decides again
// about the services that have such addresses if they changed.
func (p *Planner) reserve() {
	reserved := make(map[FrontendKey]string)
	for _, a := range p.tunnels {
		key := frontendKey(netip.AddrPortFrom(a.Addr().Unmap(), a.Port()), UDP, Inside)
		reserved[key] = "the tunnel of a node"
	}
	if api := p.entries[apiName]; api != nil && api.api != nil {
		for _, b := range slices.Concat(api.api.Backends, api.api.Reserved) {
			key := frontendKey(netip.AddrPortFrom(b.Addr().Unmap(), b.Port()), TCP, Inside)
			reserved[key] = "an API server"
		}
		for _, h := range api.api.Host {
			a := netip.AddrPortFrom(h.Addr.Addr().Unmap(), h.Addr.Port())
			reserved[frontendKey(a, TCP, Inside)] = "an address of services.apiFrontends"
		}
	}
	if maps.Equal(p.here.reserved, reserved) {
		return
	}
	p.here.reserved = reserved
	for n, e := range p.entries {
		if e.service != nil && e.service.external() {
			p.dirty[n] = true
		}
	}
}

// SetNodeAddrs sets the addresses of this node that serve NodePorts. Services without a NodePort
// are not planned again.
func (p *Planner) SetNodeAddrs(addrs []netip.Addr) {
	if slices.Equal(p.here.addrs, addrs) {
		return
	}
	p.here.addrs = slices.Clone(addrs)
	for n, e := range p.entries {
		if e.service != nil && e.service.hasNodePort() {
			p.dirty[n] = true
		}
	}
}

// SetZone sets the zone of this node; "" means that it has none. Only services with hints for zones
// are planned again.
func (p *Planner) SetZone(zone string) {
	if p.here.zone == zone {
		return
	}
	p.here.zone = zone
	for n, e := range p.entries {
		if e.hasZones() {
			p.dirty[n] = true
		}
	}
}

// hasZones reports whether an endpoint of e has hints for zones.
func (e *entry) hasZones() bool {
	for _, s := range e.slices {
		if slices.ContainsFunc(s.Endpoints, func(ep Endpoint) bool {
			return ep.Hints != nil && len(ep.Hints.Zones) > 0
		}) {
			return true
		}
	}
	return false
}

// Hold sets whether Plan keeps the entries that an earlier process left and that no service claims.
// The caller holds them until all services are listed. Plan always updates entry 0.
func (p *Planner) Hold(hold bool) { p.hold = hold }

// Problems returns the reasons why the last Plan could not serve services as requested, sorted by
// text. Each is a *FullError, a *ConflictError, a *ReservedError, a *PortError, or an ErrFull of a
// frontend for Host.
func (p *Planner) Problems() []error {
	var all []error
	for _, e := range p.waiting {
		all = append(all, e.full)
	}
	for n := range p.refusing {
		all = append(all, p.entries[n].now.refused...)
	}
	for key := range p.contested {
		list := p.claims[key]
		if list[0].kind == kindAPIServer {
			continue // default/kubernetes has the same addresses
		}
		for _, c := range list[1:] {
			if c.owner != list[0].owner && key.Scope == Inside {
				all = append(all, &ConflictError{c.owner, list[0].owner, key})
			}
		}
	}
	slices.SortFunc(all, func(a, b error) int { return cmp.Compare(a.Error(), b.Error()) })
	return all
}

// MapContent is the content of the maps, as an earlier process left it.
type MapContent struct {
	Frontends    map[FrontendKey]Frontend
	Backends     []Backend // slots from 0 on, at least up to the last one that Frontends use
	Members      map[MemberKey]Member
	SourceRanges []SourceRangeKey
}

// Adopt sets the content of the maps, after a start with pinned maps and after changes that failed
// in part. All services must be known by then: the next Plan decides about each again and deletes
// entries without a use. A service that does not fit then keeps its own entries. Another service
// may get a frontend that both claim.
func (p *Planner) Adopt(s MapContent) {
	p.frontends, p.members, p.sources = make(map[FrontendKey]Frontend), make(map[MemberKey]Member),
		make(map[SourceRangeKey]bool)
	maps.Copy(p.frontends, s.Frontends)
	maps.Copy(p.members, s.Members)
	for _, k := range s.SourceRanges {
		p.sources[k] = true
	}
	p.claims, p.contested, p.refusing = make(map[FrontendKey][]claim), make(map[FrontendKey]bool),
		make(map[Name]bool)
	p.room, p.freed, p.orphans = newExtents(p.limits.BackendSlots), nil, make(map[uint64][]extent)
	p.adopted, p.apiHeld = make(map[uint64]*group), make(map[uint32]bool)
	p.waiting, p.left = make(map[Name]*entry), make(map[uint64]*leftover)
	for _, f := range s.Frontends {
		p.revision = max(p.revision, f.Revision)
		p.adoptExtent(f, s.Backends)
	}
	for n, e := range p.entries {
		e.now, e.full, e.want = decision{}, nil, decision{}
		p.dirty[n] = true
	}
	p.sweep = true
}

// adoptExtent reserves the extent of a frontend. If the extent is not valid, adoptExtent reserves
// nothing, and the frontend is written again.
func (p *Planner) adoptExtent(f Frontend, all []Backend) {
	at, end := extent{f.First, f.Count}, uint64(f.First)+uint64(f.Count)
	known := p.adopted[f.Group]
	if f.Count == 0 || end > uint64(len(all)) || (known != nil && known.at == at) {
		return
	}
	if f.First < apiSlots {
		p.apiHeld[f.First] = true
		if end > apiSlots || f.Count > MaxAPIServers {
			return
		}
	} else if !p.room.reserve(at) {
		return
	}
	if known != nil {
		// An earlier Apply failed in part: some frontends of the group point elsewhere.
		if f.First >= apiSlots {
			p.orphans[f.Group] = append(p.orphans[f.Group], at)
		}
		return
	}
	p.adopted[f.Group] = &group{id: f.Group, at: at, backends: slices.Clone(all[f.First:end])}
}
