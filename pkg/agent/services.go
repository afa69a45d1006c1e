package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/proxy"
	"github.com/kubeveil/kubeveil/pkg/service/table"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// Ports of the API server: of its service, and of itself where nothing else is known (kubeadm's).
const (
	apiServicePort = 443
	apiServerPort  = 6443
)

// services are the table of services of this node.
type services struct {
	table *table.Table
	proxy *proxy.Proxy
	// self is what packets are sent from, as it was last told.
	self struct {
		podPrefixes []netip.Prefix
		addrs       []netip.Addr
	}
	// placed is whether the node's addresses were told; the loop's alone.
	placed bool
}

// tableOf is the table as the proxy knows it.
type tableOf struct {
	*table.Table
	cgroup string
}

// Attach attaches to the node's links and then, since these find most connections before there is a packet, to its sockets.
func (t tableOf) Attach() error {
	if _, err := t.AttachLinks(); err != nil {
		return err
	}
	_, err := t.AttachSockets(t.cgroup)
	return err
}

// openServices makes the table, where it is asked for; where it is not, one that was there before is taken away: nobody would keep it.
func (a *Agent) openServices() error {
	if a.cfg.ServiceProxy != config.ServiceProxyEBPF {
		taken, err := removeServices()
		for _, t := range taken {
			a.log.Info("removed what translated services", "what", t)
		}
		return err
	}
	cgroup, err := serviceCgroup(a.cfg)
	if err != nil {
		return err
	}
	limits := serviceLimits(a.cfg.Services.Limits)
	t, err := table.Open(table.Config{Dir: config.BPFDir, Limits: limits, Links: true, Log: a.log})
	if err != nil {
		return err
	}
	known := apiServers(a.cfg, a.kube.Server(), a.lastAPIServers())
	a.log.Info("services are translated by eBPF", "cgroup", cgroup, "apiServers", known.Configured, "remembered", known.Remembered)
	p, err := proxy.New(proxy.Options{
		Node: a.cfg.Node, Limits: limits, Table: tableOf{t, cgroup}, APIServers: known,
		Observe: a.metrics.ObserveProgramming, CloseSockets: a.closeSockets, Log: a.log,
		AbortDatagrams: func() (int, error) { return a.abortDatagrams(t) },
	})
	if err != nil {
		return errors.Join(err, t.Close())
	}
	a.services = &services{table: t, proxy: p}
	return nil
}

// serviceCgroup is the root of the tree of cgroups that the node's processes are in.
func serviceCgroup(cfg config.Config) (string, error) {
	if cfg.Services.Cgroup != "" {
		return cfg.Services.Cgroup, nil
	}
	if _, err := os.Stat(filepath.Join(config.HostCgroup, "cgroup.procs")); err == nil {
		return config.HostCgroup, nil
	}
	return table.FindCgroup()
}

// checkServices says what this machine lacks for the table of services, and changes nothing.
func checkServices(cfg config.Config) error {
	if _, err := serviceCgroup(cfg); err != nil {
		return err
	}
	_, err := table.Probe()
	return err
}

func serviceLimits(c config.ServiceLimits) service.Limits {
	or := func(n int, normal uint32) uint32 {
		if n == 0 {
			return normal
		}
		return uint32(n)
	}
	d := service.DefaultLimits
	return service.Limits{
		Fronts: or(c.Fronts, d.Fronts), Slots: or(c.Slots, d.Slots), Members: or(c.Members, d.Members), Sources: or(c.Sources, d.Sources),
	}
}

func (a *Agent) lastAPIServers() []netip.Addr {
	if a.lastGood == nil {
		return nil
	}
	return a.lastGood.APIServers
}

// apiServers are what is known of the API servers before they are listed: their service has the first address of the first service
// range (kube-apiserver takes it), and they are those of the configuration, the one that veild itself is told to ask, and those of the last good table.
func apiServers(cfg config.Config, asked netip.AddrPort, last []netip.Addr) proxy.APIServers {
	known := proxy.APIServers{Configured: cfg.Services.APIServers}
	if len(cfg.ServiceRanges) > 0 {
		known.Frontends = []netip.AddrPort{netip.AddrPortFrom(cfg.ServiceRanges[0].Masked().Addr().Next(), apiServicePort)}
	}
	translated := func(addr netip.Addr) bool {
		return slices.ContainsFunc(cfg.ServiceRanges, func(r netip.Prefix) bool { return r.Contains(addr.Unmap()) })
	}
	port := uint16(apiServerPort)
	if asked.IsValid() && !translated(asked.Addr()) {
		known.Remembered = append(known.Remembered, asked)
		port = asked.Port()
	}
	for _, addr := range last {
		if !translated(addr) && addr != asked.Addr() {
			known.Remembered = append(known.Remembered, netip.AddrPortFrom(addr, port))
		}
	}
	return known
}

// runServices keeps the table; Begin was before.
func (a *Agent) runServices(ctx context.Context, g *errgroup.Group) {
	if a.services == nil {
		return
	}
	g.Go(func() error {
		a.services.proxy.Run(ctx)
		return a.services.table.Close()
	})
	g.Go(func() error { return ignoreEnd(ctx, a.services.table.WatchLinks(ctx)) })
	g.Go(func() error { return ignoreEnd(ctx, a.kube.RunServices(ctx, a.services.proxy)) })
}

// beginServices puts the table in force, as the last veild left it.
func (a *Agent) beginServices() error {
	if a.services == nil {
		return nil
	}
	if a.lastGood != nil && a.lastGood.Self != nil {
		if err := a.noteSelf(a.lastGood.Self.PodPrefixes, a.lastGood.Self.Addresses); err != nil {
			return err
		}
	}
	return a.services.proxy.Begin()
}

// noteSelf tells the programs at links what to send from: an address of the pod prefixes, which peers know as this node's, and one of the node.
func (a *Agent) noteSelf(podPrefixes []netip.Prefix, addrs []netip.Addr) error {
	s := a.services
	if s == nil || len(podPrefixes) == 0 || slices.Equal(s.self.podPrefixes, podPrefixes) && slices.Equal(s.self.addrs, addrs) {
		return nil
	}
	if err := s.table.SetSelf(podPrefixes, addrs); err != nil {
		return err
	}
	s.self.podPrefixes, s.self.addrs = slices.Clone(podPrefixes), slices.Clone(addrs)
	return nil
}

// noteNodeAddrs tells the table where NodePorts are. Addresses that are not sure do at the start; later, what was sure stands.
func (a *Agent) noteNodeAddrs(addrs []netip.Addr, sure bool) {
	if s := a.services; s != nil && (sure || !s.placed) {
		s.proxy.SetNodeAddrs(addrs)
		s.placed = true
	}
}

// serviceStatus gives what is shown of the table, and what is wrong with it.
func (a *Agent) serviceStatus() (*telemetry.Services, []string) {
	if a.services == nil {
		return nil, nil
	}
	s := a.services.proxy.Status()
	out := &telemetry.Services{
		Listed: s.Listed, Known: s.Services, Failures: s.Failures, Problems: len(s.Problems),
		Tables: []telemetry.ServiceTable{
			{Limit: "fronts", Used: s.Used.Fronts, Size: s.Limits.Fronts},
			{Limit: "slots", Used: s.Used.Slots, Size: s.Limits.Slots},
			{Limit: "members", Used: s.Used.Members, Size: s.Limits.Members},
			{Limit: "sources", Used: s.Used.Sources, Size: s.Limits.Sources},
		},
	}
	for _, api := range s.APIServers {
		out.APIServers = append(out.APIServers, telemetry.APIServer(api))
	}
	problems := s.Problems
	if s.Failed != "" {
		problems = append(problems, "the table of services cannot be written and stays as it is: "+s.Failed)
	}
	c, err := a.services.table.Counters()
	if err != nil {
		problems = append(problems, fmt.Sprintf("the table of services cannot be read: %v", err))
	}
	const socket, packet = "socket", "packet"
	out.Chosen = []telemetry.ServiceCount{
		{Where: socket, What: "tcp", Count: c.Sockets.TCP}, {Where: socket, What: "udp", Count: c.Sockets.UDP},
		{Where: packet, What: "tcp", Count: c.Packets.TCP}, {Where: packet, What: "udp", Count: c.Packets.UDP},
	}
	out.Refused = []telemetry.ServiceCount{
		{Where: socket, What: "no_backend", Count: c.Sockets.Refused}, {Where: socket, What: "unsteady", Count: c.Sockets.Unsteady},
		{Where: packet, What: "no_backend", Count: c.Packets.Refused}, {Where: packet, What: "unsteady", Count: c.Packets.Unsteady},
		{Where: packet, What: "not_here", Count: c.NotHere}, {Where: packet, What: "source", Count: c.SourceRefused},
		{Where: packet, What: "no_address", Count: c.NoAddress}, {Where: packet, What: "no_port", Count: c.NoPort},
	}
	return out, problems
}

// errNoServices is what is shown of the table where there is none.
var errNoServices = errors.New("services are not translated by veild on this node: serviceProxy is none")

// servicePages are what the admin socket shows of services.
func (a *Agent) servicePages() map[string]telemetry.Page {
	ask := func(look func(*service.Planner, *http.Request) (any, error)) telemetry.Page {
		return func(r *http.Request) (answer any, err error) {
			if a.services == nil {
				return nil, errNoServices
			}
			asked := a.services.proxy.Ask(r.Context(), func(p *service.Planner) { answer, err = look(p, r) })
			return answer, errors.Join(asked, err)
		}
	}
	return map[string]telemetry.Page{
		telemetry.ServicesPath: ask(func(p *service.Planner, _ *http.Request) (any, error) { return p.Views(), nil }),
		telemetry.ServicePath:  ask(showService),
		telemetry.TracePath:    ask(traceService),
	}
}

func showService(p *service.Planner, r *http.Request) (any, error) {
	namespace, name, _ := strings.Cut(r.FormValue("name"), "/")
	v, ok := p.View(service.Name{Namespace: namespace, Name: name})
	if !ok {
		return nil, fmt.Errorf("no service %s/%s is in the table: it does not exist, is headless, or has another proxy", namespace, name)
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
	if err := errors.Join(protocol.UnmarshalText([]byte(r.FormValue("protocol"))), scope.UnmarshalText([]byte(r.FormValue("scope")))); err != nil {
		return nil, err
	}
	f, ok := p.At(addr, protocol, scope)
	if !ok {
		return nil, fmt.Errorf("%s %s from %s is no service's: packets go there as they are", protocol, addr, scope)
	}
	return f, nil
}

// removeServices takes the table away, if there is one.
func removeServices() ([]string, error) {
	pins, err := filepath.Glob(filepath.Join(config.BPFDir, "service_*"))
	if err != nil || len(pins) == 0 {
		return nil, err
	}
	return table.Remove(config.BPFDir)
}
