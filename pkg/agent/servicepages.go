package agent

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// errNoServices is what is shown of the table where there is none.
var errNoServices = errors.New("services are not translated by veild on this node: " +
	"serviceProxy is none")

// errAPIOnly says why an existing service may not be shown beside another proxy.
var errAPIOnly = errors.New("serviceProxy is none: veild translates the API servers' own service " +
	"alone, and another proxy all others")

// errNotListed says why an existing service may not be shown.
var errNotListed = errors.New("services are not listed since veild started: the former table " +
	"is in force; only API servers are shown")

// servicePages are the admin socket's pages about services.
func (a *Agent) servicePages() map[string]telemetry.Page {
	ask := func(look func(*service.Planner, *http.Request) (any, error)) telemetry.Page {
		return func(r *http.Request) (answer any, err error) {
			if a.services == nil {
				return nil, errNoServices
			}
			asked := a.services.proxy.Ask(r.Context(),
				func(p *service.Planner) { answer, err = look(p, r) })
			switch {
			case err == nil:
			case !a.services.proxy.Status().Listed:
				err = errors.Join(err, errNotListed)
			case a.links() == nil:
				err = errors.Join(err, errAPIOnly)
			}
			return answer, errors.Join(asked, err)
		}
	}
	return map[string]telemetry.Page{
		telemetry.ServicesPath: a.listServices,
		telemetry.ServicePath:  ask(showService),
		telemetry.TracePath:    ask(traceService),
	}
}

// listServices returns the services after the named one.
func (a *Agent) listServices(r *http.Request) (any, error) {
	if a.services == nil {
		return nil, errNoServices
	}
	var after service.Name
	if name := r.FormValue("after"); name != "" {
		if err := after.UnmarshalText([]byte(name)); err != nil {
			return nil, err
		}
	}
	return service.List(after, func(f func(*service.Planner)) error {
		return a.services.proxy.Ask(r.Context(), f)
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
