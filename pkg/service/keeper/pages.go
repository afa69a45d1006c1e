package keeper

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
	"github.com/kubeveil/kubeveil/pkg/service/link"
	"github.com/kubeveil/kubeveil/pkg/service/planner"
	"github.com/kubeveil/kubeveil/pkg/service/vip"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
	"github.com/kubeveil/kubeveil/pkg/telemetry/admin"
)

// errNoServices is the answer of all pages if this node has no table.
var errNoServices = errors.New("veild does not translate services on this node: " +
	"serviceProxy is none")

// errAPIOnly explains why an existing service may not be shown beside another proxy.
var errAPIOnly = errors.New("serviceProxy is none: veild translates only the service kubernetes, " +
	"and another proxy translates all others")

// errNotListed explains why an existing service may not be shown.
var errNotListed = errors.New("veild has not listed the services since it started: the earlier " +
	"table is in force, and only API servers can be shown; see the problems in veilctl status")

// Pages returns the admin socket's pages about services.
func (f *Feature) Pages() map[string]admin.Page {
	ask := func(look func(*planner.Planner, *http.Request) (any, error)) admin.Page {
		return func(r *http.Request) (answer any, err error) {
			if f.keeper == nil {
				return nil, errNoServices
			}
			asked := f.keeper.Ask(r.Context(),
				func(p *planner.Planner) { answer, err = look(p, r) })
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
	return map[string]admin.Page{
		telemetry.ServicesPath: f.listServices,
		telemetry.ServicePath:  ask(showService),
		telemetry.TracePath:    ask(traceService),
	}
}

// listServices returns the services that follow the service named in the request.
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
	return planner.List(after, func(look func(*planner.Planner)) error {
		return f.keeper.Ask(r.Context(), look)
	})
}

func showService(p *planner.Planner, r *http.Request) (any, error) {
	namespace, name, _ := strings.Cut(r.FormValue("name"), "/")
	v, ok := p.View(service.Name{Namespace: namespace, Name: name})
	if !ok {
		return nil, fmt.Errorf("no service %s/%s is in the table: it does not exist, is headless, "+
			"or has another proxy", namespace, name)
	}
	return v, nil
}

func traceService(p *planner.Planner, r *http.Request) (any, error) {
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
		return nil, fmt.Errorf("%s %s from %s is in force from an earlier veild, because services "+
			"are not listed yet or the table is full: see veilctl status", protocol, addr, scope)
	}
	if !ok {
		return nil, fmt.Errorf("%s %s from %s belongs to no service; packets are not translated",
			protocol, addr, scope)
	}
	return f, nil
}

// maxProblems bounds the services that a status names as problems. Tenants write services.
const maxProblems = 64

// Status adds the status of the table of services and its problems.
func (f *Feature) Status(s *telemetry.Status) {
	if f.keeper == nil {
		if f.noAPIPath != "" {
			s.Problems = append(s.Problems, f.noAPIPath)
		}
		return
	}

	known := f.keeper.Status()
	out := &telemetry.Services{
		Listed: known.Listed, HostRouting: config.HostRoutingKernel, Known: known.Services,
		Failures: known.Failures, Problems: len(known.Problems), APIOnly: f.links == nil,
		Tables:    tableSizes(known.Used, known.Limits),
		APIClosed: telemetry.APIClosed{Waiting: known.API.Closed.Stuck, Rest: known.API.Closed.Rest},
	}

	if f.silent != nil {
		out.SiteClosed = f.silent.closed.Load()
	}
	for _, l := range f.o.Source.LeftOut() {
		out.LeftOut = append(out.LeftOut, telemetry.LeftOut(l))
	}
	refused := f.vips.Refused()
	for _, r := range refused {
		out.LeftOut = append(out.LeftOut,
			telemetry.LeftOut{Kind: "Address", Namespace: r.Namespace, Count: r.Addresses})
	}
	for _, api := range known.API.Servers {
		out.APIServers = append(out.APIServers, telemetry.APIServer(api))
	}
	for _, h := range known.API.Frontends {
		out.APIFrontends = append(out.APIFrontends,
			telemetry.APIFrontend{Addr: h.Addr, Servers: h.Backends})
	}

	named := min(len(known.Problems), maxProblems)
	problems := slices.Concat(known.Problems[:named], known.API.Problems)
	if more := len(known.Problems) - named; more > 0 {
		problems = append(problems, fmt.Sprintf("%d more services are not served as they are "+
			"specified: see the log of veild", more))
	}
	if known.Failed != "" {
		problems = append(problems, "the table of services cannot be written, so its last content "+
			"stays in force: "+known.Failed)
	}
	if len(refused) > 0 {
		problems = append(problems, refusedAddresses(refused))
	}
	counters, err := f.table.Counters()
	if err != nil {
		problems = append(problems, fmt.Sprintf("the table of services cannot be read: %v", err))
	}
	out.Chosen, out.Refused = outcomes(counters)

	if f.links != nil {
		if out.FastPathOff = f.judged.reason(); f.o.Config.Services.FastPath() && out.FastPathOff == "" {
			out.HostRouting = config.HostRoutingEBPF
		}
		used, err := f.table.Remembered()
		if err != nil {
			problems = append(problems, fmt.Sprintf("flows of services cannot be counted: %v", err))
		} else {
			out.Tables = append(out.Tables, flowSizes(used, f.table.Memory())...)
		}
		clients, room, err := f.links.PodClients()
		if err != nil {
			problems = append(problems, fmt.Sprintf("pod clients of services cannot be counted: %v",
				err))
		} else {
			out.Tables = append(out.Tables, telemetry.ServiceTable{
				Limit: telemetry.LimitPodClients, Used: clients, Size: room})
		}
		out.FastPathLeft = fastPathLeft(counters, f.links)
		out.HandedOver.Tracked, out.HandedOver.Refused = f.links.HandedOver()
	}

	s.Services, s.Problems = out, append(s.Problems, problems...)
}

// refusedAddresses returns a sentence about refused addresses. It names at most three namespaces.
func refusedAddresses(refused []vip.Refused) string {
	names, n, open := []string{}, 0, 0
	for i, r := range refused {
		n, open = n+r.Addresses, open+r.Open
		if i < 3 {
			names = append(names, r.Namespace)
		}
	}
	where := strings.Join(names, ", ")
	if more := len(refused) - len(names); more > 0 {
		where += fmt.Sprintf(" and %d more", more)
	}
	said := fmt.Sprintf("%d LoadBalancer IPs and external IPs of services in namespace %s are not "+
		"served, because a namespace has room for %d, and all together for %d: an address counts "+
		"for an hour after its service lost it, and longer while pods may use it; change addresses "+
		"less often, or use fewer", n, where, vip.NamespaceMax, vip.NormalMax)
	if open > 0 {
		said += fmt.Sprintf("; %d of them are not closed to pods either, whose packets to them "+
			"leave the node in clear", open)
	}
	return said
}

// Drops returns how often programs refused a packet or a socket, by reason. Without a table it is
// empty.
func (f *Feature) Drops() (map[string]uint64, error) {
	if f.keeper == nil {
		return nil, nil
	}
	return f.table.Drops()
}

// tableSizes returns the used and total entries of the table's maps, flowSizes of the flow tables.
// services.limits has a field for each.
func tableSizes(used, room service.Limits) []telemetry.ServiceTable {
	return []telemetry.ServiceTable{
		{Limit: telemetry.LimitFrontends, Used: used.Frontends, Size: room.Frontends},
		{Limit: telemetry.LimitBackendSlots, Used: used.BackendSlots, Size: room.BackendSlots},
		{Limit: telemetry.LimitSourceRanges, Used: used.SourceRanges, Size: room.SourceRanges},
	}
}

func flowSizes(used, room bpfmaps.Memory) []telemetry.ServiceTable {
	return []telemetry.ServiceTable{
		{Limit: telemetry.LimitTCPFlows, Used: used.TCP, Size: room.TCP},
		{Limit: telemetry.LimitOpeningFlows, Used: used.Opening, Size: room.Opening},
		{Limit: telemetry.LimitUDPFlows, Used: used.UDP, Size: room.UDP},
		{Limit: telemetry.LimitFlowQuotas, Used: used.Quotas, Size: room.Quotas},
	}
}

// fastPathLeft returns how often packets of a pod left the fast path, by reason.
func fastPathLeft(counters []bpfmaps.Counter, links *link.Links) []telemetry.FastPathLeft {
	limit, policy, off := links.Left()
	left := []telemetry.FastPathLeft{{Reason: telemetry.LeftHostPort},
		{Reason: telemetry.LeftLink, Count: limit}, {Reason: telemetry.LeftPolicy, Count: policy},
		{Reason: telemetry.LeftOff, Count: off}}
	for _, c := range counters {
		if c.Constant == "PACKET_HOST_PORT" {
			left[0].Count = c.Count
		}
	}
	return left
}

// outcomes returns how often the programs chose a backend, and how often they refused.
func outcomes(counters []bpfmaps.Counter) (chosen, refused []telemetry.ServiceCount) {
	for _, c := range counters {
		count := telemetry.ServiceCount{Where: c.Where, What: c.Name, Count: c.Count}
		switch {
		case c.Sentence != "":
			refused = append(refused, count)
		case c.Name != "":
			chosen = append(chosen, count)
		}
	}
	return chosen, refused
}
