package agent

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/pathmtu"
)

// probes runs the path MTU prober for the addresses that this node has, which
// are known only after a source has spoken. It is used by the loop alone.
type probes struct {
	ctx   context.Context
	run   func(func() error)
	log   *slog.Logger
	found func(pathmtu.Peer, int)

	sources []netip.Addr
	prober  *pathmtu.Prober
	stop    context.CancelFunc
}

// set makes the prober probe peers from sources; another set of sources begins
// anew.
func (p *probes) set(sources []netip.Addr, peers []pathmtu.Peer) {
	if p.prober == nil || !slices.Equal(p.sources, sources) {
		if p.stop != nil {
			p.stop()
		}
		ctx, stop := context.WithCancel(p.ctx)
		prober := pathmtu.New(pathmtu.Options{Sources: sources, Found: p.found, Log: p.log})
		p.sources, p.prober, p.stop = slices.Clone(sources), prober, stop
		p.run(func() error { return ignoreEnd(ctx, prober.Run(ctx)) })
	}
	p.prober.SetPeers(peers)
}

// probePeers are the peers whose path is probed, by an address of the family
// that the tunnel to them runs over.
func probePeers(in inputs, d decision) []pathmtu.Peer {
	underlay := cluster.Node{Addresses: d.host.SelfAddrs}.AddressFamilies()
	var out []pathmtu.Peer
	for i, p := range d.host.Peers {
		endpoint, ok := in.table.Peers[i].Endpoint(underlay)
		if !ok || len(p.Devices) == 0 {
			continue
		}
		out = append(out, pathmtu.Peer{Name: p.Name, Device: p.Devices[0], Addr: endpoint.Addr(), DeviceMTU: d.podMTU})
	}
	return out
}
