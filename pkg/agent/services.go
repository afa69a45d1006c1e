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
	proxy "github.com/kubeveil/kubeveil/pkg/service/keeper"
	"github.com/kubeveil/kubeveil/pkg/service/link"
	"github.com/kubeveil/kubeveil/pkg/service/table"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// services is the service table of this node.
type services struct {
	table *table.Table
	links *link.Links // nil if the table has entry 0 alone
	proxy *proxy.Keeper
	vips  service.VIPs
	// listed reports whether vips are complete.
	listed atomic.Bool
}

// tableOf is the table as the proxy sees it.
type tableOf struct {
	*table.Table
	links  *link.Links
	cgroup string
}

// Attach attaches to the node's links and then to its sockets: sockets find most backends before
// there is a packet.
func (t tableOf) Attach() error {
	if t.links != nil {
		if _, err := t.links.AttachLinks(); err != nil {
			return err
		}
	}
	_, err := t.AttachSockets(t.cgroup)
	return err
}

// feed passes a feed to the proxy, and to the guard the addresses that pods reach by translation
// only.
type feed struct {
	*proxy.Keeper
	services *services
	changed  func()
}

// PutService adds or replaces a service.
func (f feed) PutService(s service.Service) {
	f.Keeper.PutService(s)
	if f.services.vips.Put(s, time.Now()) {
		f.changed()
	}
}

// DeleteService removes a service.
func (f feed) DeleteService(n service.Name) {
	f.Keeper.DeleteService(n)
	if f.services.vips.Delete(n, time.Now()) {
		f.changed()
	}
}

// Listed says that every existing service has been put.
func (f feed) Listed() {
	f.Keeper.Listed()
	f.services.listed.Store(true)
	f.changed()
}

// gatherVIPs returns the addresses that the guard blocks for pods. Addresses that it blocked before
// count as recently deleted, and stay blocked at least until services are listed. If another
// program now translates services, they stay until the machine reboots, as long as flows of the old
// table may remain.
func (a *Agent) gatherVIPs(in *inputs) {
	switch s := a.services; {
	case a.links() == nil:
		in.vips = a.leftVIPs
	case s.listed.Load():
		in.vips = s.vips.Addrs(time.Now(), a.vipsInUse)
	default:
		in.vips = union(s.vips.Addrs(time.Now(), a.vipsInUse), a.leftVIPs)
	}
}

// vipsInUse returns those of some addresses that have flows, all if that is unknown.
func (a *Agent) vipsInUse(addrs []netip.Addr) []netip.Addr {
	used, err := a.services.links.InUse(addrs)
	if err != nil {
		a.log.Warn("addresses of services that went stay closed to pods, since it is not known "+
			"whether they have flows", "addresses", addrs, "error", err)
		return addrs
	}
	return used
}

// openServices opens the table if the configuration asks for it: all of it, or entry 0 alone. What
// another configuration left, and no process would maintain, is removed.
func (a *Agent) openServices() error {
	have, err := a.guard.Read()
	if err != nil {
		return err
	}

	cfg := a.config()
	a.leftVIPs = have.VIPs
	if cfg.ServiceProxy != config.ServiceProxyEBPF {
		return a.openAPIPath(cfg)
	}
	return a.newServices(cfg, table.Config{Limits: serviceLimits(cfg.Services.Limits), Links: true,
		TunnelPort:  uint16(cfg.Tunnel.Port),
		HostRouting: cfg.Services.HostRouting == config.HostRoutingEBPF})
}

// newServices opens a table. One without programs at links is for entry 0 alone.
func (a *Agent) newServices(cfg config.Config, o table.Config) error {
	cgroup, err := node.ServiceCgroup(cfg)
	if err != nil {
		return err
	}

	o.Dir, o.Log = abi.BPFDir, a.log
	t, err := table.Open(o)
	if err != nil {
		return err
	}

	var last []netip.Addr
	if t := a.view.Load().lastGood; t != nil {
		last = t.APIServers
	}
	po := proxy.Options{
		Node: cfg.Node, Limits: o.Limits,
		APIServers:   apiServers(cfg, a.kube.Server(), serviceOfPod(os.Getenv), last),
		CloseSockets: a.closeSockets, Log: a.log, VerifyServer: a.kube.ServerVerifier(),
		Retransmitting: a.retransmittingTo, CountSockets: a.countAPISockets,
		ProbeMark: abi.ProbeMark,
	}

	var links *link.Links
	if o.Links {
		links = link.New(t, a.log)
		po.HealthAddress, po.Observe = cfg.Services.HealthAddress, a.metrics.ObserveProgramming
		po.AbortDatagrams = func() (int, error) { return a.abortDatagrams(t) }
	}

	po.Table = tableOf{t, links, cgroup}
	a.log.Info("services are translated by eBPF", "apiServersOnly", !o.Links,
		"hostRouting", cfg.Services.HostRouting, "cgroup", cgroup,
		"apiServers", po.APIServers.Configured, "remembered", po.APIServers.Remembered)
	p, err := proxy.New(po)
	if err != nil {
		return errors.Join(err, t.Close())
	}

	a.services = &services{table: t, links: links, proxy: p}
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
		Frontends: or(c.Frontends, d.Frontends), BackendSlots: or(c.BackendSlots, d.BackendSlots),
		Members: or(c.Members, d.Members), SourceRanges: or(c.SourceRanges, d.SourceRanges),
	}
}

// runServices maintains the table after Begin.
func (a *Agent) runServices(ctx context.Context, g *errgroup.Group) {
	if a.services == nil {
		return
	}
	g.Go(func() error {
		a.services.proxy.Run(ctx)
		return nil
	})
	if a.services.links == nil {
		g.Go(func() error {
			return ignoreEnd(ctx, a.kube.RunAPIServers(ctx, apiFeed{a.services.proxy}))
		})
		return
	}
	g.Go(func() error {
		select {
		case <-a.services.proxy.Attached(): // until then links have the settings of the last veild
			return ignoreEnd(ctx, a.services.links.WatchLinks(ctx))
		case <-ctx.Done():
			return nil
		}
	})
	g.Go(func() error {
		return ignoreEnd(ctx, a.kube.RunServices(ctx, feed{a.services.proxy, a.services, a.poke}))
	})
}

// closeServices closes the table, which stays in force, once no reader uses it.
func (a *Agent) closeServices() error {
	if a.services == nil {
		return nil
	}
	return a.services.table.Close()
}

// beginServices puts the table in force as the last veild left it.
func (l *loop) beginServices() error {
	if l.services == nil {
		return nil
	}
	if l.links() == nil {
		if err := l.services.proxy.Begin(); err != nil {
			return l.goWithoutAPIPath(err)
		}
		return nil
	}
	// Its programs judge by marks, which the fast path of an earlier veild does not set.
	if err := l.host.StopFlows(); err != nil {
		return err
	}
	if l.lastGood != nil && l.lastGood.Self != nil {
		if err := l.noteSelf(l.lastGood.Self.PodPrefixes, l.lastGood.Self.Addresses); err != nil {
			return err
		}
	}
	return l.services.proxy.Begin()
}

// noteSelf tells the programs at links their sources: an address of the pod prefixes, which peers
// know as this node's, and a node address.
func (l *loop) noteSelf(podPrefixes []netip.Prefix, addrs []netip.Addr) error {
	links := l.links()
	if links == nil || len(podPrefixes) == 0 ||
		slices.Equal(l.noted.podPrefixes, podPrefixes) && slices.Equal(l.noted.addrs, addrs) {
		return nil
	}
	if err := links.SetSelf(podPrefixes, addrs); err != nil {
		return err
	}
	l.noted.podPrefixes, l.noted.addrs = slices.Clone(podPrefixes), slices.Clone(addrs)
	return nil
}

// noteNodeAddrs passes the addresses of NodePorts, the endpoints of tunnels and the number of nodes
// to the table. An uncertain underlay is used only at the start; later the last certain one stands.
func (l *loop) noteNodeAddrs(cfg config.Config, t cluster.Table, u hostnet.Underlay, sure bool) {
	s := l.services
	if s == nil {
		return
	}
	if sure || !l.placed {
		s.proxy.SetNodeAddrs(nodePortAddrs(cfg.Services.NodePortAddresses, t.Self, u))
		l.placed = true
	}
	s.proxy.SetTunnels(tunnelEndpoints(t, uint16(cfg.Tunnel.Port)))
	s.proxy.SetNodes(len(t.Peers) + 1)
}

// nodePortAddrs returns the assigned addresses that serve NodePorts: those in ranges, or without
// ranges the primary ones. Primary are the addresses in the Node object; for a family with several,
// those on the link to the other nodes.
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

// tunnelEndpoints returns the possible endpoints of all nodes of t: the published ones, and this
// node's port at every node address.
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

// serviceTables returns how full the maps are that services.limits has a field for.
func serviceTables(used, room service.Limits) []telemetry.ServiceTable {
	return []telemetry.ServiceTable{
		{Limit: telemetry.LimitFrontends, Used: used.Frontends, Size: room.Frontends},
		{Limit: telemetry.LimitBackendSlots, Used: used.BackendSlots, Size: room.BackendSlots},
		{Limit: telemetry.LimitMembers, Used: used.Members, Size: room.Members},
		{Limit: telemetry.LimitSourceRanges, Used: used.SourceRanges, Size: room.SourceRanges},
	}
}

// serviceStatus returns the status of the table, and its problems.
func (a *Agent) serviceStatus(hostRouting string) (*telemetry.Services, []string) {
	if a.services == nil {
		if a.noAPIPath != "" {
			return nil, []string{a.noAPIPath}
		}
		return nil, nil
	}

	s := a.services.proxy.Status()
	out := &telemetry.Services{
		Listed: s.Listed, HostRouting: hostRouting, Known: s.Services, Failures: s.Failures,
		Problems: len(s.Problems), APIOnly: a.links() == nil,
		Tables:    serviceTables(s.Used, s.Limits),
		APIClosed: telemetry.APIClosed{Waiting: s.Closed.Stuck, Rest: s.Closed.Rest},
	}

	for _, api := range s.APIServers {
		out.APIServers = append(out.APIServers, telemetry.APIServer(api))
	}
	for _, f := range s.APIFrontends {
		out.APIFrontends = append(out.APIFrontends, telemetry.APIFrontend(f))
	}

	problems := slices.Concat(s.Problems, s.APIProblems)
	if s.Failed != "" {
		problems = append(problems, "the table of services cannot be written and stays as it is: "+
			s.Failed)
	}
	c, err := a.services.table.Counters()
	if err != nil {
		problems = append(problems, fmt.Sprintf("the table of services cannot be read: %v", err))
	}

	if links := a.links(); links != nil {
		clients, room, err := links.PodClients()
		if err != nil {
			problems = append(problems, fmt.Sprintf("pod clients of services cannot be counted: %v",
				err))
		} else {
			out.Tables = append(out.Tables, telemetry.ServiceTable{
				Limit: telemetry.LimitPodClients, Used: clients, Size: room})
		}
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
