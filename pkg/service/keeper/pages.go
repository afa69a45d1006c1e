package keeper

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// errNoServices is the answer of all pages where there is no table.
var errNoServices = errors.New("services are not translated by veild on this node: " +
	"serviceProxy is none")

// errAPIOnly explains why an existing service may not be shown beside another proxy.
var errAPIOnly = errors.New("serviceProxy is none: veild translates the API servers' own service " +
	"alone, and another proxy all others")

// errNotListed explains why an existing service may not be shown.
var errNotListed = errors.New("services are not listed since veild started: the former table " +
	"is in force; only API servers are shown")

// Pages returns the admin socket's pages about services.
func (f *Feature) Pages() map[string]telemetry.Page {
	ask := func(look func(*service.Planner, *http.Request) (any, error)) telemetry.Page {
		return func(r *http.Request) (answer any, err error) {
			if f.keeper == nil {
				return nil, errNoServices
			}
			asked := f.keeper.Ask(r.Context(),
				func(p *service.Planner) { answer, err = look(p, r) })
			switch {
			case err == nil:
			case !f.keeper.Status().Listed:
				err = errors.Join(err, errNotListed)
			case f.links == nil:
				err = errors.Join(err, errAPIOnly)
			}
			return answer, errors.Join(asked, err)
		}
	}
	return map[string]telemetry.Page{
		telemetry.ServicesPath: f.listServices,
		telemetry.ServicePath:  ask(showService),
		telemetry.TracePath:    ask(traceService),
	}
}

// listServices returns the services after the named one.
func (f *Feature) listServices(r *http.Request) (any, error) {
	if f.keeper == nil {
		return nil, errNoServices
	}
	var after service.Name
	if name := r.FormValue("after"); name != "" {
		if err := after.UnmarshalText([]byte(name)); err != nil {
			return nil, err
		}
	}
	return service.List(after, func(look func(*service.Planner)) error {
		return f.keeper.Ask(r.Context(), look)
	})
}

func showService(p *service.Planner, r *http.Request) (any, error) {
	namespace, name, _ := strings.Cut(r.FormValue("name"), "/")
	v, ok := p.View(service.Name{Namespace: namespace, Name: name})
	if !ok {
		return nil, fmt.Errorf("no service %s/%s is in the table: it does not exist, is headless, "+
			"or has another proxy", namespace, name)
	}
	return v, nil
}

func traceService(p *service.Planner, r *http.Request) (any, error) {
	addr, err := netip.ParseAddrPort(r.FormValue("addr"))
	if err != nil {
		return nil, err
	}
	var protocol service.Protocol
	var scope service.Scope
	if err := errors.Join(protocol.UnmarshalText([]byte(r.FormValue("protocol"))),
		scope.UnmarshalText([]byte(r.FormValue("scope")))); err != nil {
		return nil, err
	}
	f, ok := p.At(addr, protocol, scope)
	if scope == service.Host && f.Chosen == 0 {
		scope = service.Inside // as the programs do
		f, ok = p.At(addr, protocol, scope)
	}
	if !ok && p.Keeps(addr, protocol, scope) {
		return nil, fmt.Errorf("%s %s from %s is kept from before veild started (not listed yet, "+
			"or the table is full): see veilctl status",
			protocol, addr, scope)
	}
	if !ok {
		return nil, fmt.Errorf("%s %s from %s belongs to no service; packets are not translated",
			protocol, addr, scope)
	}
	return f, nil
}
