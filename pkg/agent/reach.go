package agent

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/feature"
	"github.com/kubeveil/kubeveil/pkg/pathmtu"
	"github.com/kubeveil/kubeveil/pkg/reach"
)

// reaches runs the prober that proves tunnels to nodes of other clusters. It runs while there is a
// node to probe.
type reaches struct {
	ctx context.Context
	run func(func() error)
	// config has everything but the sources.
	config reach.Config

	prober *reach.Prober // nil if it does not run
	stop   context.CancelFunc
	// The prober has these sources.
	sources []netip.Addr
}

// set sets the sources and peers of the prober. It starts a new prober if the sources changed.
func (r *reaches) set(sources []netip.Addr, peers []reach.Peer) {
	if r.prober != nil && (len(peers) == 0 || !slices.Equal(r.sources, sources)) {
		r.stop()
		r.prober = nil
	}
	if len(peers) == 0 {
		return
	}
	if r.prober == nil {
		ctx, stop := context.WithCancel(r.ctx)
		config := r.config
		config.Sources = slices.Clone(sources)
		prober := reach.New(config)
		r.prober, r.stop, r.sources = prober, stop, config.Sources
		r.run(func() error { return feature.IgnoreEnd(ctx, prober.Run(ctx)) })
	}
	r.prober.SetPeers(peers)
}

// problem returns a sentence about why nodes cannot be probed, or "".
func (r *reaches) problem() string {
	if r.prober == nil || r.prober.Problem() == nil {
		return ""
	}
	return fmt.Sprintf("nodes of other clusters are not probed, so dead ones get new connections: %v",
		r.prober.Problem())
}

// dead returns the pod prefixes of the nodes that do not answer, sorted.
func (r *reaches) dead(peers []cluster.Node) (prefixes []netip.Prefix) {
	if r.prober == nil {
		return nil
	}
	names := r.prober.Dead()
	if len(names) == 0 {
		return nil
	}
	for _, n := range peers {
		if _, dead := slices.BinarySearch(names, n.Name); dead {
			prefixes = append(prefixes, n.PodPrefixes...)
		}
	}
	slices.SortFunc(prefixes, netip.Prefix.Compare)
	return prefixes
}

// reachPeers returns the peers among probed that are nodes of other clusters and have one of the
// remote addresses in their pod prefixes. remote is sorted.
func reachPeers(probed []pathmtu.Peer, nodes []cluster.Node,
	remote []netip.Addr) (peers []reach.Peer) {
	if len(remote) == 0 {
		return nil
	}
	wanted := map[string]bool{}
	for _, n := range nodes {
		if n.Site() != "" && slices.ContainsFunc(n.PodPrefixes, func(p netip.Prefix) bool {
			i, _ := slices.BinarySearchFunc(remote, p.Masked().Addr(), netip.Addr.Compare)
			return i < len(remote) && p.Contains(remote[i])
		}) {
			wanted[n.Name] = true
		}
	}
	for _, p := range probed {
		if wanted[p.Name] {
			peers = append(peers, reach.Peer{Name: p.Name, Device: p.Device, Addr: p.Addr})
		}
	}
	return peers
}
