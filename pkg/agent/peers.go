package agent

import (
	"context"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/internal/poll"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/pathmtu"
	"github.com/kubeveil/kubeveil/pkg/reach"
	"github.com/kubeveil/kubeveil/pkg/tunnel"
)

// askAfter is the time for which a peer may be silent before its key is read from the API server.
const askAfter = 30 * time.Second

// watchPeers reads the counters of peers until ctx ends, often enough to distinguish a silent peer
// from an idle one. If another program has changed a device, it causes a turn.
func (a *Agent) watchPeers(ctx context.Context) error {
	return poll.Each(ctx, tunnel.WatchEvery, func(time.Time) {
		a.readPeers(ctx)
		if a.kube != nil {
			// The API server has no VeilNodes of sites.
			a.kube.SetSilent(slices.DeleteFunc(a.tunnels.SilentFor(askAfter),
				func(name string) bool { return cluster.SiteOf(name) != "" }))
		}
	})
}

// readPeers reads the counters of peers.
func (a *Agent) readPeers(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, tunnelsLimit)
	defer cancel()
	// The error is ignored here, because Status reports why tunnels cannot be read.
	if differs, _ := a.tunnels.Watch(limited); differs {
		a.poke()
	}
}

// peerHeard returns when an authentic packet of a peer was last noticed.
func (a *Agent) peerHeard(p reach.Peer) time.Time {
	s, _ := a.tunnels.SentTo(p.Device, p.Name)
	return s.Heard
}

// peerTraffic returns the traffic to a peer for the path MTU prober. It returns false if the peer
// is not known.
func (a *Agent) peerTraffic(p pathmtu.Peer) (pathmtu.Traffic, bool) {
	s, ok := a.tunnels.SentTo(p.Device, p.Name)
	return pathmtu.Traffic{Sent: s.Bytes, At: s.At, Silent: s.Contact == tunnel.ContactSilent,
		Segments: s.Kind == tunnel.Userspace}, ok
}

// sendSingly makes veil-wg send datagrams to a peer one by one, because the path to the peer loses
// segmented datagrams.
func (a *Agent) sendSingly(ctx context.Context, p pathmtu.Peer) {
	limited, cancel := context.WithTimeout(ctx, tunnelsLimit)
	defer cancel()
	if err := a.tunnels.SendSingly(limited, p.Device, p.Name); err != nil {
		a.log.Warn("the path to a peer loses segmented datagrams, and veil-wg cannot send them "+
			"one by one", "peer", p.Name, "device", p.Device, "err", err)
		return
	}
	a.log.Warn("the path to a peer loses segmented datagrams: they are sent one by one",
		"peer", p.Name, "device", p.Device)
}
