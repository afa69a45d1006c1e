package agent

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/agent/plan"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/feature"
	"github.com/kubeveil/kubeveil/pkg/hostnet/rtnetlink"
	"github.com/kubeveil/kubeveil/pkg/pathmtu"
)

// probes runs the path MTU prober. The prober needs this node's addresses, so it starts only after
// the source has sent a state.
type probes struct {
	ctx context.Context
	run func(func() error)
	log *slog.Logger
	// found is called with each result of the prober.
	found func(pathmtu.Peer, int)
	// broken is called with the peer of each path that loses segmented datagrams.
	broken func(pathmtu.Peer)
	// traffic returns the traffic to a peer.
	traffic func(pathmtu.Peer) (pathmtu.Traffic, bool)

	// The prober has these sources and peers.
	sources []netip.Addr
	peers   []pathmtu.Peer
	prober  *pathmtu.Prober
	stop    context.CancelFunc
}

// probe sets the sources and peers of the prober, and removes the results of nodes that are not
// peers any more.
func (l *loop) probe(sources []netip.Addr, peers []pathmtu.Peer) {
	if l.probes.prober != nil && slices.Equal(l.probes.sources, sources) &&
		plan.SameSlice(peers, l.probes.peers) {
		return
	}
	l.probes.set(sources, peers, l.view.Load().pathMTU)
	current := make(map[string]bool, len(peers))
	for _, p := range peers {
		current[p.Name] = true
	}
	forgotten := false
	l.change(func(v *view) {
		next := maps.Clone(v.pathMTU)
		maps.DeleteFunc(next, func(name string, _ int) bool { return !current[name] })
		forgotten = len(next) != len(v.pathMTU)
		v.pathMTU = next
	})
	if forgotten {
		l.poke()
	}
}

// set sets the sources and peers of the prober. If the sources have changed, it starts a new prober
// with believed as the previous results.
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
	p.peers = peers
	p.prober.SetPeers(peers)
}

// recall adopts the path MTUs that an earlier veild found, from the routes in the kernel. Only the
// first successful call does that.
func (l *loop) recall(in *plan.Inputs) error {
	if l.recalled {
		return nil
	}
	have, err := l.host.Read()
	if err != nil {
		return err
	}
	l.recalled = true
	in.PathMTU = routedMTU(have.Routes, in.Table.Peers)
	l.change(func(v *view) { v.pathMTU = in.PathMTU })
	return nil
}

// routedMTU returns the MTUs of the routes to peers, by peer. An earlier veild found them, so after
// a restart the node sends no packets that are too large for a path.
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
