package planner

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"unique"

	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/buddy"
)

// Planner holds the current services and endpoints, and the content of the maps. Put and Delete
// methods only note a change. Plan decides about the noted services.
type Planner struct {
	here    here
	limits  service.Limits
	entries map[service.Name]*entry
	dirty   queue
	// most bounds a Plan, if more services are noted.
	most turn
	// young are the services that changed since the last Prepare, and settled those that changed
	// before it but not since.
	young, settled map[service.Name]bool
	// waiting are the services that did not fit. Their decision is kept until there is room.
	waiting map[service.Name]*entry
	// refusing are the services with ports that the table does not support. contested are the
	// frontends that several services claim.
	refusing  map[service.Name]bool
	contested map[service.FrontendKey]bool
	services  int // that are known
	tunnels   []netip.AddrPort
	// claims are in force. The first claim of a list has the frontend.
	claims map[service.FrontendKey][]claim

	// The content of the maps, once the changes of the last Plan are made.
	frontends map[service.FrontendKey]service.Frontend
	sources   map[service.SourceRangeKey]bool
	revision  uint64

	room    *buddy.Allocator
	inUse   map[uint32]uint32 // the number of slots in use by chunk, without those of entry 0
	freed   []buddy.Extent    // by the last Plan; they have no reader once its changes are made
	apiHeld map[uint32]bool   // blocks of entry 0 that are read

	// The entries that an earlier process left and that no service has claimed yet. After a sweep,
	// left has the entries that stay because their service does not fit, by group.
	sweep   bool
	hold    bool
	listed  bool              // the next Plan is the first about all services
	adopted map[uint64]*group // by id
	orphans map[uint64][]buddy.Extent
	left    map[uint64]*leftover
}

// leftover holds the entries of a group that an earlier process left and whose service does not
// fit.
type leftover struct {
	frontends []service.FrontendKey
	sources   []service.SourceRangeKey
}

// entry is a service. Its object and its slices arrive separately, in any order.
type entry struct {
	name    service.Name
	service *service.Service
	slices  map[string]*service.Slice
	// edits are the slices that changed since now was decided, as they were then. A new one is nil.
	// whole reports whether something else changed, so that they are not noted.
	edits map[string]*service.Slice
	whole bool
	api   *service.APIServer // of entry 0 only
	now   decision           // in force
	ready *decision          // of Prepare; nil if e, or what it depends on, changed since
	full  *service.FullError // why want is not in force yet; nil if now is up to date
	want  decision           // the current decision, while full is set
}

// apiName is entry 0. No namespace has an empty name.
var apiName = service.Name{Namespace: "", Name: "api-server"}

// New returns a Planner for empty maps of these sizes. node is this node's name. The error is
// ErrLimits.
func New(node string, limits service.Limits) (*Planner, error) {
	switch {
	case limits.BackendSlots&(limits.BackendSlots-1) != 0 ||
		limits.BackendSlots < 2*service.APISlots:
		return nil, fmt.Errorf("%w: %d slots: want a power of two of at least %d",
			service.ErrLimits,
			limits.BackendSlots, 2*service.APISlots)
	case limits.Frontends < 3*service.MaxAPIFrontends:
		return nil, fmt.Errorf("%w: %d frontends: want at least %d", service.ErrLimits,
			limits.Frontends,
			3*service.MaxAPIFrontends)
	case limits.SourceRanges == 0:
		return nil, fmt.Errorf("%w: no source ranges: want some", service.ErrLimits)
	}
	p := &Planner{here: here{node: node, handle: unique.Make(node)}, limits: limits,
		entries: make(map[service.Name]*entry), most: normalTurn,
		young: make(map[service.Name]bool)}
	p.Adopt(MapContent{})
	return p, nil
}

func (p *Planner) entry(n service.Name) *entry {
	e := p.entries[n]
	if e == nil {
		e = &entry{name: n, slices: make(map[string]*service.Slice), whole: true}
		p.entries[n] = e
	}
	return e
}

// touch notes that e must be decided again, because of more than its slices.
func (p *Planner) touch(e *entry) {
	e.wholly()
	p.touchSlices(e)
}

func (p *Planner) touchIf(match func(*entry) bool) {
	for _, e := range p.entries {
		if match(e) {
			p.touch(e)
		}
	}
}

// touchSlices notes that e must be decided again.
func (p *Planner) touchSlices(e *entry) {
	e.ready = nil
	p.dirty.note(e.name)
	if p.hold {
		p.young[e.name] = true
		delete(p.settled, e.name)
	}
}

// PutService adds or replaces a service. The Planner owns the memory of s afterwards.
func (p *Planner) PutService(s service.Service) {
	e := p.entry(s.Name)
	if e.service == nil {
		p.services++
	}
	e.service = &s
	p.touch(e)
}

// DeleteService removes a service. A missing service is not an error.
func (p *Planner) DeleteService(n service.Name) {
	if e := p.entries[n]; e != nil && e.service != nil {
		e.service = nil
		p.services--
		p.touch(e)
	}
}

// PutSlice adds or replaces a slice, before or after its service. The Planner owns the
// memory of s afterwards.
func (p *Planner) PutSlice(s service.Slice) {
	e := p.entry(s.Service)
	e.edit(s.Name)
	e.slices[s.Name] = &s
	p.touchSlices(e)
}

// DeleteSlice removes a slice. A missing slice is not an error.
func (p *Planner) DeleteSlice(owner service.Name, slice string) {
	if e := p.entries[owner]; e != nil {
		e.edit(slice)
		delete(e.slices, slice)
		p.touchSlices(e)
	}
}

// SetAPIServer sets entry 0. It always fits. Other services cannot claim the addresses of its
// servers as external addresses.
func (p *Planner) SetAPIServer(a service.APIServer) {
	e := p.entry(apiName)
	e.api = &a
	p.touch(e)
	p.reserve()
}

// SetTunnels reserves the UDP endpoints of the nodes' tunnels: a datagram that veil-wg sends
// there is never translated.
func (p *Planner) SetTunnels(endpoints []netip.AddrPort) {
	if slices.Equal(p.tunnels, endpoints) {
		return
	}
	p.tunnels = slices.Clone(endpoints)
	p.reserve()
}

// reserve computes the frontends that external addresses may not claim, and decides again
// about the services that have such addresses if they changed.
func (p *Planner) reserve() {
	reserved := make(map[service.FrontendKey]string)
	for _, a := range p.tunnels {
		reserved[service.MakeFrontendKey(a, service.UDP, service.Inside)] = "the tunnel of a node"
	}
	if api := p.entries[apiName]; api != nil && api.api != nil {
		for _, b := range slices.Concat(api.api.Backends, api.api.Reserved) {
			reserved[service.MakeFrontendKey(b, service.TCP, service.Inside)] = "an API server"
		}
		for _, h := range api.api.Host {
			key := service.MakeFrontendKey(h.Addr, service.TCP, service.Inside)
			reserved[key] = "an address of services.apiFrontends"
		}
	}

	if maps.Equal(p.here.reserved, reserved) {
		return
	}
	p.here.reserved = reserved
	p.touchIf(func(e *entry) bool { return e.service != nil && e.service.External() })
}

// SetNodeAddrs sets the addresses of this node that serve NodePorts. Services without a NodePort
// are not planned again.
func (p *Planner) SetNodeAddrs(addrs []netip.Addr) {
	if slices.Equal(p.here.addrs, addrs) {
		return
	}
	p.here.addrs = slices.Clone(addrs)
	p.touchIf(func(e *entry) bool { return e.service != nil && e.service.HasNodePort() })
}

// SetZone sets the zone of this node; "" means that it has none. Only services with hints for zones
// are planned again.
func (p *Planner) SetZone(zone string) {
	if p.here.zone == zone {
		return
	}
	p.here.zone = zone
	p.touchIf((*entry).hasZones)
}

// SetOwnAddrs sets all addresses of this node, sorted. The DNS port of a ClusterIP that is one of
// them is left to the node's own process: NodeLocal DNSCache. Only services with that port are
// planned again.
func (p *Planner) SetOwnAddrs(addrs []netip.Addr) {
	if slices.Equal(p.here.own, addrs) {
		return
	}
	p.here.own = slices.Clone(addrs)
	p.touchIf(func(e *entry) bool {
		return e.service != nil && slices.ContainsFunc(e.service.Ports,
			func(p service.Port) bool { return p.Port == dnsPort })
	})
}

func (e *entry) hasZones() bool {
	for _, s := range e.slices {
		if slices.ContainsFunc(s.Hints, func(h service.Hints) bool { return len(h.Zones) > 0 }) {
			return true
		}
	}
	return false
}

// Hold sets whether Plan keeps the entries that an earlier process left, and decides about entry 0
// alone. The caller holds until all services are listed.
func (p *Planner) Hold(hold bool) {
	p.hold = hold
	p.listed = p.listed || p.hold && !hold
	if !hold {
		p.young, p.settled = make(map[service.Name]bool), nil
	}
}

// Prepare decides about noted services while the caller holds, so that less is left for the Plan
// after it. It leaves out services that changed since the last Prepare, because their slices may
// still arrive. So the work for a service does not grow with the square of its slices.
func (p *Planner) Prepare() {
	for n := range p.settled {
		if e := p.entries[n]; e.ready == nil && n != apiName {
			d := decide(p.here, e)
			e.ready = &d
		}
	}
	p.settled, p.young = p.young, make(map[service.Name]bool)
}

// Problems returns the reasons why the last Plan could not serve services as requested, sorted by
// text. Each is a *FullError, an ErrConflict, an ErrReserved, an ErrNotSupported, or an ErrFull of
// a frontend for Host.
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
			if c.owner != list[0].owner && key.Scope == service.Inside {
				all = append(all, service.Conflict(c.owner, list[0].owner, key))
			}
		}
	}
	slices.SortFunc(all, func(a, b error) int { return cmp.Compare(a.Error(), b.Error()) })
	return all
}

// Sizes returns how many entries of each map are in use once the changes of the last Plan are made.
// BackendSlots counts allocated slots: the slots of entry 0, and for each group its number of
// backends rounded up to a power of two.
func (p *Planner) Sizes() service.Limits {
	free := p.room.Free()
	for _, x := range p.freed {
		free += x.Size()
	}
	return service.Limits{
		Frontends: uint32(len(p.frontends)), BackendSlots: p.limits.BackendSlots - free,
		SourceRanges: uint32(len(p.sources)),
	}
}
