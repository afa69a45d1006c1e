package keeper

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/feature"
	"github.com/kubeveil/kubeveil/pkg/pod"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/apiserver"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
	"github.com/kubeveil/kubeveil/pkg/service/link"
	"github.com/kubeveil/kubeveil/pkg/service/probe"
	"github.com/kubeveil/kubeveil/pkg/service/vip"
	"github.com/kubeveil/kubeveil/pkg/sysctl"
)

// Source is the API server as a Feature needs it. kube.Client implements it.
type Source interface {
	// Server returns the API server's address in the credentials. It is not valid if the
	// credentials have a host name instead.
	Server() netip.AddrPort
	// ServerVerifier returns a function that verifies the certificate of an API server. Nil means
	// that no certificate can be verified.
	ServerVerifier() func(tls.ConnectionState) error
	// RunServices passes services and their endpoints to sink until ctx ends. It leaves out objects
	// of a namespace beyond the namespace's share of room. RunAPIServers passes only the API
	// servers' own service.
	RunServices(ctx context.Context, room service.Limits, sink service.Sink) error
	RunAPIServers(ctx context.Context, sink service.Sink) error
	// LeftOut returns the objects that are left out now, by kind and namespace.
	LeftOut() []service.LeftOut
}

// liberalPath is the setting by which conntrack accepts segments outside the window that it knows.
const liberalPath = "netfilter/nf_conntrack_tcp_be_liberal"

// FeatureOptions are the settings and dependencies of a Feature.
type FeatureOptions struct {
	Config config.Config
	// Source must be set if the configuration has services or the API path.
	Source Source
	Paths  pod.Paths
	// Last is the last good table. Nil means that there is none. Begin forgets it.
	Last *cluster.Table
	// Closed are the addresses of services that the guard of an earlier veild blocks.
	Closed []netip.Addr
	// StopFlows removes the kernel's flow table (flowtable) that an earlier veild made.
	StopFlows func() error
	// Changed is called when the result of Closed may have changed. It must not block.
	Changed func()
	// Observe receives the time from the arrival of a change until it is in force.
	Observe func(time.Duration)
	Log     *slog.Logger
}

// Feature is the translation of services, or the API path beside another proxy, as the agent drives
// it. Make it with Open.
type Feature struct {
	feature.None
	o FeatureOptions

	// table and keeper are nil if another program translates services, without the API path. links
	// is also nil if the table has entry 0 alone. noAPIPath is the reason why the API path could
	// not be opened, or "". None of them changes after Begin.
	table     *bpfmaps.Table
	links     *link.Links
	keeper    *Keeper
	noAPIPath string

	// judged is nil unless services.hostRouting is auto.
	judged *judged

	vips   vip.Addresses
	remote remote
	silent *silentNodes
	// feeding is held while a service is put into vips and the keeper, so that both have the same.
	feeding sync.Mutex
	// listed reports whether vips are complete.
	listed atomic.Bool

	// turn belongs to the goroutine that calls Begin and Turn.
	turn struct {
		// placed reports whether the keeper has the node's addresses.
		placed bool
		// podPrefixes and selfAddrs are the arguments of the last SetSelf.
		podPrefixes []netip.Prefix
		selfAddrs   []netip.Addr
	}
}

// Open opens the table that the configuration needs: the whole table, entry 0 alone, or no table.
// It removes a table of another configuration, which no process would maintain.
func Open(o FeatureOptions) (*Feature, error) {
	f := &Feature{o: o, remote: remote{ranges: remoteRanges(o.Config.Sites)}}
	f.silent = newSilentNodes(f.podNamespaces, o.Log)
	cfg := o.Config
	if cfg.ServiceProxy != config.ServiceProxyEBPF {
		return f, f.openAPIPath()
	}
	return f, f.open(bpfmaps.Config{Limits: limitsOf(cfg.Services.Limits),
		Memory: memoryOf(cfg.Services.Limits), Links: true,
		TunnelPort: uint16(cfg.Tunnel.Port)})
}

// open opens a table. A table without programs at links is for entry 0 alone.
func (f *Feature) open(t bpfmaps.Config) error {
	cfg, log := f.o.Config, f.o.Log
	cgroup, err := probe.CgroupOf(cfg)
	if err != nil {
		return err
	}

	t.Dir, t.Log, t.PodCgroupLevel = abi.BPFDir, log, probe.PodLevel(cgroup)
	opened, err := bpfmaps.Open(t)
	if err != nil {
		return err
	}

	var last []netip.Addr
	if f.o.Last != nil {
		last = f.o.Last.APIServers
	}
	known := apiserver.KnownBefore(cfg, f.o.Source.Server(),
		apiserver.ServiceOfPod(os.Getenv), last)
	clients := apiserver.NewConnections(f.podNamespaces)
	o := ServiceConfig{
		Node: cfg.Node, Limits: t.Limits, Log: log,
		API: apiserver.ServersConfig{
			Known: known, Verify: f.o.Source.ServerVerifier(), Mark: abi.ProbeMark,
			Close: clients.Close, Count: clients.Count, Retransmitting: clients.Retransmitting,
		},
	}

	var links *link.Links
	if t.Links {
		if cfg.Services.HostRouting == config.HostRoutingAuto {
			f.judged = newJudged(filepath.Join(abi.RunDir, fastPathOffFile), log)
		}
		links = link.New(opened, link.Options{Pods: f.o.Paths, Log: log,
			HostRouting:    cfg.Services.FastPath() && f.judged.reason() == "",
			Tunnels:        len(cfg.Sites) == 0,
			PodConnections: cfg.PodConnections})
		o.HealthAddress, o.Observe = cfg.Services.HealthAddress, f.o.Observe
		o.AbortDatagrams = f.abortDatagrams
	}

	o.Table = tableOf{opened, links, cgroup, f.podNamespaces}
	log.Info("services are translated by eBPF", "apiServersOnly", !t.Links,
		"hostRouting", cfg.Services.HostRouting, "cgroup", cgroup,
		"apiServers", known.Configured, "remembered", known.Remembered)
	k, err := New(o)
	if err != nil {
		return errors.Join(err, opened.Close())
	}

	f.table, f.links, f.keeper = opened, links, k
	f.vips.Left(f.o.Closed, time.Now())
	return nil
}

func limitsOf(c config.ServiceLimits) service.Limits {
	d := service.DefaultLimits
	return service.Limits{Frontends: cmp.Or(uint32(c.Frontends), d.Frontends),
		BackendSlots: cmp.Or(uint32(c.BackendSlots), d.BackendSlots),
		SourceRanges: cmp.Or(uint32(c.SourceRanges), d.SourceRanges)}
}

// memoryOf returns the sizes of the flow tables; 0 means the size that pkg/service/bpfmaps chooses.
func memoryOf(c config.ServiceLimits) bpfmaps.Memory {
	return bpfmaps.Memory{TCP: uint32(c.TCPFlows), Opening: uint32(c.OpeningFlows),
		UDP: uint32(c.UDPFlows), Quotas: uint32(c.FlowQuotas)}
}

// Links returns the programs at links. It returns nil if another program translates services, with
// or without the API path.
func (f *Feature) Links() *link.Links { return f.links }

// EachFlow calls fn with each flow that veild translates at links, until fn returns false. Links
// must not be nil.
func (f *Feature) EachFlow(fn func(bpfmaps.Flow) bool) error { return f.table.EachFlow(fn) }

// Begin adopts the table that the last veild left, and attaches the programs.
func (f *Feature) Begin() error {
	last := f.o.Last
	f.o.Last = nil // not needed any more, and it may have thousands of nodes
	if f.keeper == nil {
		return nil
	}
	if f.links == nil {
		if err := f.keeper.Begin(); err != nil {
			return f.goWithoutAPIPath(err)
		}
		return nil
	}

	if f.o.Config.Services.FastPath() {
		// Pods change between the fast path, which conntrack does not see, and the kernel's path.
		// By default conntrack would treat segments of their open connections as outside the
		// window.
		if err := sysctl.Write(liberalPath, "1"); err != nil {
			return fmt.Errorf("let connections come back from the fast path: %w", err)
		}
	}
	// The table's programs judge by marks that the flow table of an earlier veild does not set.
	if err := f.o.StopFlows(); err != nil {
		return err
	}
	if last != nil && last.Self != nil {
		if err := f.setSelf(last.Self.PodPrefixes, last.Self.Addresses); err != nil {
			return err
		}
	}
	// Programs of the last veild may stay attached until services are listed.
	if err := f.links.StopTunnels(); err != nil {
		return fmt.Errorf("take the fast path from tunnels: %w", err)
	}
	return f.keeper.Begin()
}

// Run maintains the table until ctx ends.
func (f *Feature) Run(ctx context.Context) error {
	if f.keeper == nil {
		return nil
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		f.keeper.Run(ctx)
		return nil
	})
	if f.links == nil {
		g.Go(func() error {
			return feature.IgnoreEnd(ctx, f.o.Source.RunAPIServers(ctx, apiFeed{f.keeper}))
		})
		return g.Wait()
	}

	g.Go(func() error {
		f.silent.run(ctx)
		return nil
	})
	g.Go(func() error {
		select {
		case <-f.keeper.Attached(): // until then the links keep the settings of the last veild
		case <-ctx.Done():
			return nil
		}
		g.Go(func() error { return feature.IgnoreEnd(ctx, f.links.WatchLinks(ctx)) })
		f.judged.follow(ctx, f.links.StopRouting)
		return nil
	})
	g.Go(func() error {
		return feature.IgnoreEnd(ctx, f.o.Source.RunServices(ctx,
			limitsOf(f.o.Config.Services.Limits), feed{f.keeper, f}))
	})
	return g.Wait()
}

// Close closes the table. The table stays in force.
func (f *Feature) Close() error {
	if f.table == nil {
		return nil
	}
	var err error
	if f.links != nil {
		err = f.links.CloseConntrack()
	}
	return errors.Join(err, f.table.Close())
}

// KernelChanged makes a Feature with services.hostRouting auto look for chains of other programs.
func (f *Feature) KernelChanged(c feature.KernelChange) {
	if c.Filters {
		f.judged.changed()
	}
}

// Turn passes the addresses of NodePorts, the endpoints of tunnels and the number of nodes to the
// table, and this node's sources to the programs at links. An uncertain link between nodes counts
// only at the start. Later, the addresses of the last certain link stay in use.
func (f *Feature) Turn(t feature.Turn) error {
	if f.keeper == nil {
		return nil
	}
	cfg := f.o.Config
	if t.Certain || !f.turn.placed {
		f.keeper.SetNodeAddrs(nodePortAddrs(cfg.Services.NodePortAddresses, t))
		f.turn.placed = true
	}
	f.keeper.SetOwnAddrs(t.Assigned)
	if self := t.Table.Self; self != nil {
		f.keeper.SetZone(self.Zone)
		f.keeper.SetLeaving(self.Leaving)
	}
	if f.links != nil {
		f.remote.setDead(t.Dead, f.keeper.PutSlice)
		f.silent.set(t.Dead, time.Now())
	}
	if !t.SamePlaces {
		f.keeper.SetTunnels(tunnelEndpoints(t.Table, uint16(cfg.Tunnel.Port)))
		f.keeper.SetNodes(len(cluster.Local(t.Table.Peers)) + 1)
	}
	return f.setSelf(t.PodPrefixes, t.SelfAddrs)
}

// setSelf sets the source addresses that the programs at links use: an address of the pod prefixes,
// which peers accept from this node, and a node address.
func (f *Feature) setSelf(podPrefixes []netip.Prefix, addrs []netip.Addr) error {
	if f.links == nil || len(podPrefixes) == 0 ||
		slices.Equal(f.turn.podPrefixes, podPrefixes) && slices.Equal(f.turn.selfAddrs, addrs) {
		return nil
	}
	if err := f.links.SetSelf(podPrefixes, addrs); err != nil {
		return err
	}
	f.turn.podPrefixes, f.turn.selfAddrs = slices.Clone(podPrefixes), slices.Clone(addrs)
	return nil
}

// nodePortAddrs returns the assigned addresses that serve NodePorts: the addresses in ranges or,
// without ranges, the primary addresses. Primary are the addresses in the Node object. If a family
// has several, only those on the link to the other nodes are.
func nodePortAddrs(ranges []netip.Prefix, t feature.Turn) []netip.Addr {
	if len(ranges) > 0 {
		return slices.DeleteFunc(slices.Clone(t.Assigned), func(a netip.Addr) bool {
			return !slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a) })
		})
	}
	self := t.Table.Self
	if self == nil {
		return t.LinkAddrs
	}
	var primary []netip.Addr
	for _, v6 := range []bool{false, true} {
		named := slices.DeleteFunc(slices.Clone(t.Assigned), func(a netip.Addr) bool {
			return a.Is6() != v6 || !slices.Contains(self.Addresses, a)
		})
		onLink := slices.DeleteFunc(slices.Clone(named), func(a netip.Addr) bool {
			return !slices.Contains(t.LinkAddrs, a)
		})
		if len(onLink) > 0 {
			named = onLink
		}
		primary = append(primary, named...)
	}
	return primary
}

// tunnelEndpoints returns the possible endpoints of all nodes of t: the published endpoints, and
// port at every node address.
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
