package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/hostnet"
	"github.com/kubeveil/kubeveil/pkg/node"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/proxy"
	"github.com/kubeveil/kubeveil/pkg/service/table"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// services are the table of services of this node.
type services struct {
	table *table.Table
	proxy *proxy.Proxy
	vips  service.VIPs
	// listed reports whether vips are all there are.
	listed atomic.Bool
	// self is what packets are sent from, as it was last told.
	self struct {
		podPrefixes []netip.Prefix
		addrs       []netip.Addr
	}
	// placed reports whether the node's addresses were told; the loop's alone.
	placed bool
}

// tableOf is the table as the proxy knows it.
type tableOf struct {
	*table.Table
	cgroup string
}

// Attach attaches to the node's links and then, since these find most connections before there is a
// packet, to its sockets.
func (t tableOf) Attach() error {
	if _, err := t.AttachLinks(); err != nil {
		return err
	}
	_, err := t.AttachSockets(t.cgroup)
	return err
}

// feed is the proxy as the sink of a feed, of which the guard has the addresses that pods reach by
// translation only.
type feed struct {
	*proxy.Proxy
	services *services
	changed  func()
}

// PutService adds or replaces a service.
func (f feed) PutService(s service.Service) {
	f.Proxy.PutService(s)
	if f.services.vips.Put(s, time.Now()) {
		f.changed()
	}
}

// DeleteService takes a service away.
func (f feed) DeleteService(n service.Name) {
	f.Proxy.DeleteService(n)
	if f.services.vips.Delete(n, time.Now()) {
		f.changed()
	}
}

// Listed says that everything there was has been put.
func (f feed) Listed() {
	f.Proxy.Listed()
	f.services.listed.Store(true)
	f.changed()
}

// gatherVIPs takes the addresses that the guard closes to pods. What it had closed before counts as
// those of services that go now, and stays closed at least until services are listed; where another
// program translates services now, as long as flows of the old table may be left: until the machine
// is started anew.
func (a *Agent) gatherVIPs(in *inputs) {
	switch s := a.services; {
	case s == nil:
		in.vips = a.leftVIPs
	case s.listed.Load():
		in.vips = s.vips.Addrs(time.Now(), a.vipsInUse)
	default:
		in.vips = union(s.vips.Addrs(time.Now(), a.vipsInUse), a.leftVIPs)
	}
}

// vipsInUse returns those of some addresses that have flows, all if that is not to be known.
func (a *Agent) vipsInUse(addrs []netip.Addr) []netip.Addr {
	used, err := a.services.table.InUse(addrs)
	if err != nil {
		a.log.Warn("addresses of services that went stay closed to pods, since it is not known "+
			"whether they have flows", "addresses", addrs, "error", err)
		return addrs
	}
	return used
}

// openServices makes the table, where it is asked for; where it is not, one that was there before
// is taken away: nobody would keep it.
func (a *Agent) openServices() error {
	have, err := a.guard.Read()
	if err != nil {
		return err
	}

	a.leftVIPs = have.VIPs
	if a.cfg.ServiceProxy != config.ServiceProxyEBPF {
		taken, err := node.RemoveServices()
		for _, t := range taken {
			a.log.Info("removed what translated services", "what", t)
		}
		return err
	}

	cgroup, err := node.ServiceCgroup(a.cfg)
	if err != nil {
		return err
	}

	limits := serviceLimits(a.cfg.Services.Limits)
	t, err := table.Open(table.Config{Dir: abi.BPFDir, Limits: limits, Links: true,
		TunnelPort:  uint16(a.cfg.Tunnel.Port),
		HostRouting: a.cfg.Services.HostRouting == config.HostRoutingEBPF, Log: a.log})
	if err != nil {
		return err
	}

	known := apiServers(a.cfg, a.kube.Server(), serviceOfPod(os.Getenv), a.lastAPIServers())
	a.log.Info("services are translated by eBPF", "hostRouting", a.cfg.Services.HostRouting,
		"cgroup", cgroup, "apiServers", known.Configured, "remembered", known.Remembered)
	p, err := proxy.New(proxy.Options{
		Node: a.cfg.Node, Limits: limits, Table: tableOf{t, cgroup},
		HealthAddress: a.cfg.Services.HealthAddress, APIServers: known,
		Observe: a.metrics.ObserveProgramming, CloseSockets: a.closeSockets, Log: a.log,
		AbortDatagrams: func() (int, error) { return a.abortDatagrams(t) },
	})
	if err != nil {
		return errors.Join(err, t.Close())
	}

	a.services = &services{table: t, proxy: p}
	a.services.vips.Left(a.leftVIPs, time.Now())
	return nil
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
		Fronts: or(c.Fronts, d.Fronts), Slots: or(c.Slots, d.Slots),
		Members: or(c.Members, d.Members), Sources: or(c.Sources, d.Sources),
	}
}

// runServices keeps the table; Begin was before.
func (a *Agent) runServices(ctx context.Context, g *errgroup.Group) {
	if a.services == nil {
		return
	}
	g.Go(func() error {
		a.services.proxy.Run(ctx)
		return nil
	})
	g.Go(func() error {
		select {
		case <-a.services.proxy.Attached(): // until then links have what the last veild gave them
			return ignoreEnd(ctx, a.services.table.WatchLinks(ctx))
		case <-ctx.Done():
			return nil
		}
	})
	g.Go(func() error {
		return ignoreEnd(ctx, a.kube.RunServices(ctx, feed{a.services.proxy, a.services, a.poke}))
	})
}

// closeServices lets go of the table, which stays in force, once nobody looks at it any more.
func (a *Agent) closeServices() error {
	if a.services == nil {
		return nil
	}
	return a.services.table.Close()
}

// beginServices puts the table in force, as the last veild left it.
func (a *Agent) beginServices() error {
	if a.services == nil {
		return nil
	}
	// Its programs judge by marks, which the short way of an earlier veild does not set.
	if err := a.host.StopFlows(); err != nil {
		return err
	}
	if a.lastGood != nil && a.lastGood.Self != nil {
		if err := a.noteSelf(a.lastGood.Self.PodPrefixes, a.lastGood.Self.Addresses); err != nil {
			return err
		}
	}
	return a.services.proxy.Begin()
}

// noteSelf tells the programs at links what to send from: an address of the pod prefixes, which
// peers know as this node's, and one of the node.
func (a *Agent) noteSelf(podPrefixes []netip.Prefix, addrs []netip.Addr) error {
	s := a.services
	if s == nil || len(podPrefixes) == 0 ||
		slices.Equal(s.self.podPrefixes, podPrefixes) && slices.Equal(s.self.addrs, addrs) {
		return nil
	}
	if err := s.table.SetSelf(podPrefixes, addrs); err != nil {
		return err
	}
	s.self.podPrefixes, s.self.addrs = slices.Clone(podPrefixes), slices.Clone(addrs)
	return nil
}

// noteNodeAddrs tells the table where NodePorts are, and which endpoints are the tunnels'.
// An underlay that is not sure is used at the start only; later, the last sure one stands.
func (a *Agent) noteNodeAddrs(t cluster.Table, u hostnet.Underlay, sure bool) {
	s := a.services
	if s == nil {
		return
	}
	if sure || !s.placed {
		s.proxy.SetNodeAddrs(nodePortAddrs(a.cfg.Services.NodePortAddresses, t.Self, u))
		s.placed = true
	}
	s.proxy.SetTunnels(tunnelEndpoints(t, uint16(a.cfg.Tunnel.Port)))
}

// nodePortAddrs returns the assigned addresses that serve NodePorts: those in ranges, or without
// ranges the primary ones. These are the addresses that the Node object names; of a family that
// has several, those on the link to the other nodes.
func nodePortAddrs(ranges []netip.Prefix, self *cluster.Node, u hostnet.Underlay) []netip.Addr {
	if len(ranges) > 0 {
		return slices.DeleteFunc(slices.Clone(u.Assigned), func(a netip.Addr) bool {
			return !slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a) })
		})
	}
	if self == nil {
		return u.Addrs
	}
	var primary []netip.Addr
	for _, v6 := range []bool{false, true} {
		named := slices.DeleteFunc(slices.Clone(u.Assigned), func(a netip.Addr) bool {
			return a.Is6() != v6 || !slices.Contains(self.Addresses, a)
		})
		onLink := slices.DeleteFunc(slices.Clone(named), func(a netip.Addr) bool {
			return !slices.Contains(u.Addrs, a)
		})
		if len(onLink) > 0 {
			named = onLink
		}
		primary = append(primary, named...)
	}
	return primary
}

// tunnelEndpoints returns where the tunnels of all nodes of t may be: the endpoints that
// peers publish, and this node's port at every node address.
func tunnelEndpoints(t cluster.Table, port uint16) []netip.AddrPort {
	all := make([]netip.AddrPort, 0, len(t.NodeAddrs)+len(t.Peers))
	for _, addr := range t.NodeAddrs {
		all = append(all, netip.AddrPortFrom(addr, port))
	}
	for _, p := range t.Peers {
		if p.Claim != nil {
			all = append(all, p.Claim.Endpoints...)
		}
	}
	slices.SortFunc(all, netip.AddrPort.Compare)
	return slices.Compact(all)
}

// serviceStatus returns what is shown of the table, and what is wrong with it.
func (a *Agent) serviceStatus(hostRouting string) (*telemetry.Services, []string) {
	if a.services == nil {
		return nil, nil
	}

	s := a.services.proxy.Status()
	out := &telemetry.Services{
		Listed: s.Listed, HostRouting: hostRouting, Known: s.Services, Failures: s.Failures,
		Problems: len(s.Problems),
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
		problems = append(problems, "the table of services cannot be written and stays as it is: "+
			s.Failed)
	}
	c, err := a.services.table.Counters()
	if err != nil {
		problems = append(problems, fmt.Sprintf("the table of services cannot be read: %v", err))
	}

	callers, room, err := a.services.table.Callers()
	if err != nil {
		problems = append(problems, fmt.Sprintf("the callers of services cannot be counted: %v",
			err))
	} else {
		out.Tables = append(out.Tables, telemetry.ServiceTable{Limit: "callers", Used: callers,
			Size: room})
	}

	const socket, packet = "socket", "packet"
	out.Chosen = []telemetry.ServiceCount{
		{Where: socket, What: "tcp", Count: c.Sockets.TCP},
		{Where: socket, What: "udp", Count: c.Sockets.UDP},
		{Where: packet, What: "tcp", Count: c.Packets.TCP},
		{Where: packet, What: "udp", Count: c.Packets.UDP},
	}
	out.Refused = []telemetry.ServiceCount{
		{Where: socket, What: "no_backend", Count: c.Sockets.Refused},
		{Where: socket, What: "unsteady", Count: c.Sockets.Unsteady},
		{Where: packet, What: "no_backend", Count: c.Packets.Refused},
		{Where: packet, What: "unsteady", Count: c.Packets.Unsteady},
		{Where: packet, What: "not_here", Count: c.NotHere},
		{Where: packet, What: "source", Count: c.SourceRefused},
		{Where: packet, What: "no_address", Count: c.NoAddress},
		{Where: packet, What: "no_port", Count: c.NoPort},
	}

	return out, problems
}
