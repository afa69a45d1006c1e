package service

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"time"
)

// APIServer returns entry 0 as the maps have it, or an empty one.
func (s MapContent) APIServer() APIServer {
	var a APIServer
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

		if k.Scope == Host {
			a.Host = append(a.Host, HostFrontend{k.AddrPort(), backends})
			continue
		}
		a.Frontends = append(a.Frontends, k.AddrPort())
		a.Backends = append(a.Backends, backends...)
	}
	slices.SortFunc(a.Host, func(x, y HostFrontend) int { return x.Addr.Compare(y.Addr) })
	slices.SortFunc(a.Frontends, netip.AddrPort.Compare)
	slices.SortFunc(a.Backends, netip.AddrPort.Compare)
	a.Backends = slices.Compact(a.Backends)
	return a
}

// View describes to operators how a service is in force.
type View struct {
	Service   Name           `json:"service"`
	Frontends []FrontendView `json:"fronts,omitempty"`
	// Problems are the reasons why the service is not served as its object requests.
	Problems []string `json:"problems,omitempty"`
}

// FrontendView is a frontend of a service.
type FrontendView struct {
	Addr     netip.AddrPort `json:"addr"`
	Protocol Protocol       `json:"protocol"`
	Scope    Scope          `json:"scope"`
	// Kind is the field of the Service that the address comes from, such as ClusterIP.
	Kind string `json:"kind"`
	// Owner is the service that has the frontend, which may be another service.
	Owner Name `json:"owner"`
	// Local reports whether only backends on this node are chosen, Drop whether packets are dropped
	// because this node has no backend.
	Local bool `json:"local,omitempty"`
	Drop  bool `json:"drop,omitempty"`
	// Affinity is the time for which a client keeps its backend.
	Affinity time.Duration `json:"affinity,omitempty"`
	// Sources are the ranges of external clients that are admitted if Ranged is set. Otherwise any
	// client is admitted.
	Sources []netip.Prefix `json:"sources,omitempty"`
	Ranged  bool           `json:"ranged,omitempty"`
	// Chosen is the number of backends for new connections, Known the number of all endpoints.
	Chosen int `json:"chosen"`
	Known  int `json:"known"`
	// Backends are the backends for new connections, all with the same probability, and then the
	// others. It is empty in the result of List.
	Backends []BackendView `json:"backends,omitempty"`
}

// BackendView is an endpoint of a frontend.
type BackendView struct {
	Addr netip.AddrPort `json:"addr"`
	Node string         `json:"node,omitempty"`
	// Here reports whether the endpoint is on this node.
	Here bool `json:"here,omitempty"`
	// Chosen reports whether new connections may go there. Why is the reason.
	Chosen bool   `json:"chosen"`
	Why    string `json:"why"`
}

// kindNames are the names of kinds, as the API of Kubernetes has them.
var kindNames = map[kind]string{
	kindAPIServer: "API server", kindClusterIP: "ClusterIP", kindNodePort: "NodePort",
	kindLoadBalancer: "LoadBalancer", kindExternalIP: "externalIP",
}

// Services returns the number of known services.
func (p *Planner) Services() int { return p.services }

// View returns a service as it is in force, and false if no service has this name.
func (p *Planner) View(n Name) (View, bool) { return p.view(n, p.tellBackends) }

// view returns the View of a service. fill sets the backends of each frontend, or only their
// counts.
func (p *Planner) view(n Name, fill func(*entry, claim, *FrontendView)) (View, bool) {
	e := p.entries[n]
	if e == nil || e.service == nil && e.api == nil {
		return View{}, false
	}
	v := View{Service: n}
	if e.full != nil {
		v.Problems = append(v.Problems, e.full.Error())
	}
	for _, err := range e.now.refused {
		v.Problems = append(v.Problems, err.Error())
	}
	for _, c := range e.now.claims {
		f := p.frontend(e, c)
		fill(e, c, &f)
		if f.Owner != n && f.Owner != apiName && c.key.Scope == Inside {
			v.Problems = append(v.Problems, (&ConflictError{n, f.Owner, c.key}).Error())
		}
		v.Frontends = append(v.Frontends, f)
	}
	slices.SortFunc(v.Frontends, func(a, b FrontendView) int {
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Protocol, b.Protocol),
			cmp.Compare(a.Scope, b.Scope))
	})
	return v, true
}

// At returns the frontend at an address, and false if no service has it.
func (p *Planner) At(a netip.AddrPort, protocol Protocol, scope Scope) (FrontendView, bool) {
	list := p.claims[frontendKey(netip.AddrPortFrom(a.Addr().Unmap(), a.Port()), protocol, scope)]
	if len(list) == 0 {
		return FrontendView{}, false
	}
	e := p.entries[list[0].owner]
	f := p.frontend(e, list[0])
	p.tellBackends(e, list[0], &f)
	return f, true
}

// Keeps reports whether the maps have a frontend at this address. If At finds none, an earlier
// process left the frontend: its service does not fit, or is not listed yet.
func (p *Planner) Keeps(a netip.AddrPort, protocol Protocol, scope Scope) bool {
	_, ok := p.frontends[frontendKey(netip.AddrPortFrom(a.Addr().Unmap(), a.Port()), protocol,
		scope)]
	return ok
}

func (p *Planner) frontend(e *entry, c claim) FrontendView {
	f := FrontendView{
		Addr: c.key.AddrPort(), Protocol: c.key.Protocol, Scope: c.key.Scope,
		Kind: kindNames[c.kind], Owner: c.owner,
		Local: c.group.local, Drop: c.flags&FlagDrop != 0,
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
func (p *Planner) tellBackends(e *entry, c claim, f *FrontendView) {
	f.Backends = p.backends(e, c)
	f.Known = len(f.Backends)
	for _, b := range f.Backends {
		if b.Chosen {
			f.Chosen++
		}
	}
}

// backends returns the endpoints of a claim, chosen ones first, each with the reason.
func (p *Planner) backends(e *entry, c claim) []BackendView {
	g := e.now.groups[c.group]
	if g == nil {
		return nil
	}
	if c.kind == kindAPIServer {
		why := "it answers, or no API server answers"
		if c.key.Scope == Host {
			why = "it answers, and its certificate names the address"
		}
		var out []BackendView
		for i := range g.backends.Len() {
			out = append(out, BackendView{Addr: g.backends.At(i).AddrPort(), Chosen: true, Why: why})
		}
		return out
	}
	var out []BackendView
	for port, ep := range endpointsOf(e, c.group) {
		out = append(out, p.backend(ep, port, c.group.local, g))
	}
	slices.SortFunc(out, func(a, b BackendView) int {
		return cmp.Or(compareBool(b.Chosen, a.Chosen), a.Addr.Compare(b.Addr))
	})
	return slices.CompactFunc(out, func(a, b BackendView) bool {
		return a.Addr == b.Addr && a.Chosen == b.Chosen
	})
}

// endpointsOf returns an iterator over the endpoints of a group on all nodes, with their ports.
func endpointsOf(e *entry, key groupKey) iter.Seq2[uint16, Endpoint] {
	return func(yield func(uint16, Endpoint) bool) {
		for _, s := range e.slices {
			i := slices.IndexFunc(s.Ports, func(sp SlicePort) bool {
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

func (p *Planner) backend(ep Endpoint, port uint16, local bool, g *group) BackendView {
	b := BackendView{Addr: netip.AddrPortFrom(ep.Addr.Unmap(), port), Node: ep.Node,
		Here: p.here.node != "" && ep.Node == p.here.node}
	slot := backendOf(b.Addr)
	b.Chosen = g.backends.has(slot)
	switch rank := rankOf(ep); {
	case !Reachable(b.Addr.Addr()) || port == 0:
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
