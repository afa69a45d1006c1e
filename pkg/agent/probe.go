package agent

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/feature"
	"github.com/kubeveil/kubeveil/pkg/hostnet/rtnetlink"
	"github.com/kubeveil/kubeveil/pkg/pathmtu"
)

// probes runs the path MTU prober for this node's addresses, which are known only after a source
// has spoken.
type probes struct {
	ctx   context.Context
	run   func(func() error)
	log   *slog.Logger
	found func(pathmtu.Peer, int)
	// broken receives the peer of each path that loses segmented datagrams.
	broken func(pathmtu.Peer)
	// traffic returns what was sent to a peer.
	traffic func(pathmtu.Peer) (pathmtu.Traffic, bool)

	sources []netip.Addr
	prober  *pathmtu.Prober
	stop    context.CancelFunc
}

// probe makes the prober probe peers from sources, and forgets the results of nodes that are not
// peers any more.
func (l *loop) probe(sources []netip.Addr, peers []pathmtu.Peer) {
	l.probes.set(sources, peers, l.view.Load().pathMTU)
	gone := func(name string, _ int) bool {
		return !slices.ContainsFunc(peers, func(p pathmtu.Peer) bool { return p.Name == name })
	}
	forgotten := false
	l.change(func(v *view) {
		next := maps.Clone(v.pathMTU)
		maps.DeleteFunc(next, gone)
		forgotten = len(next) != len(v.pathMTU)
		v.pathMTU = next
	})
	if forgotten {
		l.poke()
	}
}

// set makes the prober probe peers from sources; another set of sources starts a new prober with
// the previous results.
func (p *probes) set(sources []netip.Addr, peers []pathmtu.Peer, believed map[string]int) {
	if p.prober == nil || !slices.Equal(p.sources, sources) {
		if p.stop != nil {
			p.stop()
		}
		ctx, stop := context.WithCancel(p.ctx)
		prober := pathmtu.New(pathmtu.ProberConfig{Sources: sources, Believed: believed, Found: p.found,
			Broken: p.broken, Traffic: p.traffic, Log: p.log})
		p.sources, p.prober, p.stop = slices.Clone(sources), prober, stop
		p.run(func() error { return feature.IgnoreEnd(ctx, prober.Run(ctx)) })
	}
	p.prober.SetPeers(peers)
}

// recall adopts the results of an earlier veild, once.
func (l *loop) recall(in *inputs) error {
	if l.recalled {
		return nil
	}
	have, err := l.host.Read()
	if err != nil {
		return err
	}
	l.recalled = true
	in.pathMTU = routedMTU(have.Routes, in.table.Peers)
	l.change(func(v *view) { v.pathMTU = in.pathMTU })
	return nil
}

// routedMTU reads the results of an earlier veild from the routes, by peer. After a restart the
// node so never sends packets that the path cannot carry.
func routedMTU(routes []rtnetlink.Route, peers []cluster.Node) map[string]int {
	byPrefix := map[netip.Prefix]string{}
	for _, n := range peers {
		for _, p := range n.PodPrefixes {
			byPrefix[p] = n.Name
		}
	}
	found := map[string]int{}
	for _, r := range routes {
		if name := byPrefix[r.Dst]; name != "" && r.Device != "" && r.MTU > 0 {
			found[name] = r.MTU
		}
	}
	return found
}

// probePeers returns the peers whose path is probed, with an address of the family that their
// tunnel uses.
func probePeers(in inputs, d decision) []pathmtu.Peer {
	underlay := cluster.Node{Addresses: d.host.SelfAddrs}.AddressFamilies()
	var out []pathmtu.Peer
	for i, p := range d.host.Peers {
		endpoint, ok := in.table.Peers[i].Endpoint(underlay)
		if !ok || len(p.Devices) == 0 ||
			!slices.Contains(in.table.Peers[i].Addresses, endpoint.Addr()) {
			continue // A contested address is an endpoint, but no packet inside the tunnel has it.
		}
		out = append(out, pathmtu.Peer{Name: p.Name, Device: p.Devices[0], Addr: endpoint.Addr(),
			DeviceMTU: d.podMTU})
	}
	return out
}
