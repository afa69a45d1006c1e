package agent

import (
	"context"
	"log/slog"
	"maps"
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

// probe makes the prober probe peers from sources, and forgets what was found by a
// prober that is no more, or for a peer that is none: a new one tells only what
// is less than the device's MTU.
func (a *Agent) probe(sources []netip.Addr, peers []pathmtu.Peer) {
	anew := a.probes.set(sources, peers)
	a.mu.Lock()
	defer a.mu.Unlock()
	next := maps.Clone(a.pathMTU)
	maps.DeleteFunc(next, func(name string, _ int) bool {
		return anew || !slices.ContainsFunc(peers, func(p pathmtu.Peer) bool { return p.Name == name })
	})
	if len(next) != len(a.pathMTU) {
		a.pathMTU = next
		a.poke()
	}
}

// set makes the prober probe peers from sources; another set of sources begins
// anew, and set says that it did.
func (p *probes) set(sources []netip.Addr, peers []pathmtu.Peer) (anew bool) {
	anew = p.prober == nil || !slices.Equal(p.sources, sources)
	if anew || !slices.Equal(p.sources, sources) {
		if p.stop != nil {
			p.stop()
		}
		ctx, stop := context.WithCancel(p.ctx)
		prober := pathmtu.New(pathmtu.Options{Sources: sources, Found: p.found, Log: p.log})
		p.sources, p.prober, p.stop = slices.Clone(sources), prober, stop
		p.run(func() error { return ignoreEnd(ctx, prober.Run(ctx)) })
	}
	p.prober.SetPeers(peers)
	return anew
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
