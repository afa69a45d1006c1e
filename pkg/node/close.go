package node

import (
	"errors"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/guard"
	"github.com/kubeveil/kubeveil/pkg/hostnet"
)

// Close puts only the guard and the unreachable routes in force. A systemd unit runs it at boot
// before the network comes up. Until veild runs, processes of the host could otherwise reach pods
// of other nodes in clear. Close needs no API server. If veild has run since boot, it does not
// change the routing. After an error about one link, the other links are still closed.
func Close(cfg config.Config, log *slog.Logger) (err error) {
	if err := checkMachine(cfg); err != nil {
		return err
	}

	g, err := guard.Open(abi.BPFDir, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	have, err := g.Read()
	if err != nil {
		return err
	}

	settings, want := closing(cfg, have)
	if _, err := g.Apply(settings); err != nil {
		return err
	}
	defer func() {
		for _, link := range g.Unguarded() {
			err = errors.Join(err, errors.New(link))
		}
	}()

	h, err := hostnet.Open()
	if err != nil {
		return err
	}
	defer h.Close()
	routing, err := h.Read()
	if err != nil || len(routing.Devices) > 0 {
		return err
	}

	ops, err := h.Sync(hostnet.Plan(want))
	for _, op := range ops {
		log.Info("routing changed", "op", op.String())
	}
	return err
}

// closing returns the settings that close a node at boot. They come from the configuration, and
// from what veild has learned since boot: addresses of nodes and of services, and ranges of
// services.
func closing(cfg config.Config, have *guard.Kernel) (guard.Settings, hostnet.Want) {
	for _, r := range have.Ranges {
		if !slices.Contains(cfg.PodRanges(), r) && !slices.Contains(cfg.ServiceRanges, r) {
			cfg.ServiceRanges = append(slices.Clip(cfg.ServiceRanges), r)
		}
	}
	settings, want := Closed(cfg, nil, have.VIPs)
	settings.NodeAddrs = have.Nodes
	return settings, want
}

// Closed returns the settings that close a node: no packet with an address of the cluster, of
// nodes, of services or of a site's pods crosses the network in clear. It is pure. The agent starts
// with these settings and adds what it knows about the node and its peers, and what is exported to
// sites.
func Closed(cfg config.Config, nodeAddrs, vips []netip.Addr) (guard.Settings, hostnet.Want) {
	settings := guard.Settings{
		Ranges:    slices.Concat(cfg.PodRanges(), cfg.ServiceRanges),
		NodeAddrs: nodeAddrs,
		// A pod's packet to a node goes through the node's tunnel or is dropped, even if services
		// use the node's address.
		VIPs: without(vips, nodeAddrs),
	}
	for _, s := range cfg.Sites {
		if s.ExportsOnly() {
			settings.Sites = append(settings.Sites, guard.Site{Name: s.Name,
				Ranges: slices.Concat(s.PodRanges, s.NodeRanges)})
		}
	}

	want := hostnet.Want{
		ClusterRanges: cfg.PodRanges(),
		ServiceRanges: cfg.ServiceRanges,
		NodeAddrs:     nodeAddrs,
		ClosedRanges:  slices.Concat(cfg.Closed(), cfg.ClosedLinkLocal()),
		Masquerade:    cfg.Masquerade,
		// Echoes of another cluster's node are answered inside the tunnel.
		ReflectMarks: cfg.ServiceProxy == config.ServiceProxyEBPF || len(cfg.Sites) > 0,
		// The service programs need marks on leaving packets, and the flowtable's fast path does
		// not set marks.
		Flowtable:  cfg.ServiceProxy != config.ServiceProxyEBPF,
		TunnelPort: cfg.Tunnel.Port,
	}
	return settings, want
}

// without returns the elements of addrs that are not in others.
func without(addrs, others []netip.Addr) (rest []netip.Addr) {
	if len(addrs) == 0 {
		return nil
	}
	has := make(map[netip.Addr]bool, len(others))
	for _, a := range others {
		has[a] = true
	}
	for _, a := range addrs {
		if !has[a] {
			rest = append(rest, a)
		}
	}
	return rest
}
