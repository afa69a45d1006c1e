package planner

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/pkg/service"
)

// APIServer returns entry 0 as the maps have it, or an empty one.
func (s MapContent) APIServer() service.APIServer {
	var a service.APIServer
	for k, f := range s.Frontends {
		if !isAPI(k, f) {
			continue
		}

		var backends []netip.AddrPort
		if end := f.End(); end <= uint64(len(s.Backends)) {
			for _, slot := range s.Backends[f.First:end] {
				backends = append(backends, slot.AddrPort())
			}
		}

		if k.Scope == service.Host {
			a.Host = append(a.Host, service.HostFrontend{Addr: k.AddrPort(), Backends: backends})
			continue
		}
		a.Frontends = append(a.Frontends, k.AddrPort())
		a.Backends = append(a.Backends, backends...)
	}
	slices.SortFunc(a.Host, func(x, y service.HostFrontend) int { return x.Addr.Compare(y.Addr) })
	slices.SortFunc(a.Frontends, netip.AddrPort.Compare)
	slices.SortFunc(a.Backends, netip.AddrPort.Compare)
	a.Backends = slices.Compact(a.Backends)
	return a
}

// kindNames are the names of kinds, as the API of Kubernetes has them.
var kindNames = map[kind]string{
	kindAPIServer: "API server", kindClusterIP: "ClusterIP", kindNodePort: "NodePort",
	kindLoadBalancer: "LoadBalancer", kindExternalIP: "externalIP",
}

// Services returns the number of known services.
func (p *Planner) Services() int { return p.services }

// View returns a service as it is in force, and false if no service has this name.
func (p *Planner) View(n service.Name) (service.View, bool) { return p.view(n, p.tellBackends) }

// view returns the View of a service. fill sets the backends of each frontend, or only their
// counts.
func (p *Planner) view(n service.Name, fill func(*entry, claim,
	*service.FrontendView)) (service.View, bool) {
	e := p.entries[n]
	if e == nil || e.service == nil && e.api == nil {
		return service.View{}, false
	}
	v := service.View{Service: n}
	if e.full != nil {
		v.Problems = append(v.Problems, e.full.Error())
	}
	for _, err := range e.now.refused {
		v.Problems = append(v.Problems, err.Error())
	}
	for _, c := range e.now.claims {
		f := p.frontend(e, c)
		fill(e, c, &f)
		if f.Owner != n && f.Owner != apiName && c.key.Scope == service.Inside {
			v.Problems = append(v.Problems, service.Conflict(n, f.Owner, c.key).Error())
		}
		v.Frontends = append(v.Frontends, f)
	}
	slices.SortFunc(v.Frontends, func(a, b service.FrontendView) int {
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Protocol, b.Protocol),
			cmp.Compare(a.Scope, b.Scope))
	})
	return v, true
}

// At returns the frontend at an address, and false if no service has it.
func (p *Planner) At(a netip.AddrPort, protocol service.Protocol,
	scope service.Scope) (service.FrontendView, bool) {
	list := p.claims[service.MakeFrontendKey(a, protocol, scope)]
	if len(list) == 0 {
		return service.FrontendView{}, false
	}
	e := p.entries[list[0].owner]
	f := p.frontend(e, list[0])
	p.tellBackends(e, list[0], &f)
	return f, true
}

// Keeps reports whether the maps have a frontend at this address. If At finds none, an earlier
// process left the frontend: its service does not fit, or is not listed yet.
func (p *Planner) Keeps(a netip.AddrPort, protocol service.Protocol, scope service.Scope) bool {
	_, ok := p.frontends[service.MakeFrontendKey(a, protocol, scope)]
	return ok
}

func (p *Planner) frontend(e *entry, c claim) service.FrontendView {
	f := service.FrontendView{
		Addr: c.key.AddrPort(), Protocol: c.key.Protocol, Scope: c.key.Scope,
		Kind: kindNames[c.kind], Owner: c.owner,
		Local: c.group.local, Drop: c.flags&service.FlagDrop != 0,
		Affinity: time.Duration(c.affinity) * time.Second, Ranged: c.sources != 0,
	}
	if list := p.claims[c.key]; len(list) > 0 {
		f.Owner = list[0].owner
	}
	if f.Ranged {
		f.Sources = slices.Clone(e.service.SourceRanges)
	}
	return f
}

// tellBackends sets the backends of a claim and their counts in f.
func (p *Planner) tellBackends(e *entry, c claim, f *service.FrontendView) {
	f.Backends = p.backends(e, c)
	f.Known = len(f.Backends)
	for _, b := range f.Backends {
		if b.Chosen {
			f.Chosen++
		}
	}
}

// backends returns the endpoints of a claim, chosen ones first, each with the reason.
func (p *Planner) backends(e *entry, c claim) []service.BackendView {
	g := e.now.groups[c.group]
	if g == nil {
		return nil
	}
	if c.kind == kindAPIServer {
		why := "it answers, or no API server answers"
		if c.key.Scope == service.Host {
			why = "it answers, and its certificate names the address"
		}
		var out []service.BackendView
		for i := range g.backends.Len() {
			out = append(out, service.BackendView{Addr: g.backends.At(i).AddrPort(), Chosen: true,
				Why: why})
		}
		return out
	}

	var out []service.BackendView
	for port, ep := range endpointsOf(e, c.group) {
		out = append(out, p.backend(ep, port, c.group.local, g))
	}
	slices.SortFunc(out, func(a, b service.BackendView) int {
		return cmp.Or(compareBool(b.Chosen, a.Chosen), a.Addr.Compare(b.Addr))
	})
	return slices.CompactFunc(out, func(a, b service.BackendView) bool {
		return a.Addr == b.Addr && a.Chosen == b.Chosen
	})
}

// endpointsOf returns an iterator over the endpoints of a group on all nodes, with their ports.
func endpointsOf(e *entry, key groupKey) iter.Seq2[uint16, service.Endpoint] {
	return func(yield func(uint16, service.Endpoint) bool) {
		for _, s := range e.slices {
			i := slices.IndexFunc(s.Ports, func(sp service.SlicePort) bool {
				return sp.Name == key.port && sp.Protocol == key.protocol
			})
			if i < 0 {
				continue
			}
			for ep := range s.Endpoints.All() {
				if ep.Addr.Unmap().Is6() == key.v6 && !yield(s.Ports[i].Port, ep) {
					return
				}
			}
		}
	}
}

func (p *Planner) backend(ep service.Endpoint, port uint16, local bool,
	g *group) service.BackendView {
	b := service.BackendView{Addr: netip.AddrPortFrom(ep.Addr.Unmap(), port), Node: ep.Node,
		Here: p.here.node != "" && ep.Node == p.here.node}
	slot := service.BackendOf(b.Addr)
	b.Chosen = g.backends.Has(slot)
	switch rank := rankOf(ep); {
	case !service.Reachable(b.Addr.Addr()) || port == 0:
		b.Why = "no pod can have this address and port"
	case b.Chosen && rank == rankReady:
		b.Why = "ready"
	case b.Chosen:
		b.Why = "it is terminating and still serves, because no backend is ready"
	case local && !b.Here:
		b.Why = "not on this node, and the policy is Local"
	case rank == rankLast:
		b.Why = "it is terminating: it keeps its existing connections"
	case rank == rankDraining:
		b.Why = "not ready: it keeps its existing flows"
	case rank == rankReady && !local && ep.Hints != 0:
		b.Why = "its hints name another zone or node, and other endpoints have hints for this node"
	case rank == rankReady:
		b.Why = "the table has no room for the newest endpoints of the service"
	default:
		b.Why = "it does not serve"
	}
	return b
}
