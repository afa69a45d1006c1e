package agent

import (
	"context"
	"time"

	"github.com/kubeveil/kubeveil/pkg/pathmtu"
	"github.com/kubeveil/kubeveil/pkg/tunnel"
)

// askAfter is how long a peer may be silent before its key is read from the API server.
const askAfter = 30 * time.Second

// watchPeers reads the counters of peers until ctx ends, often enough to distinguish a silent peer
// from an idle one. It causes a turn when another program changed a device.
func (a *Agent) watchPeers(ctx context.Context) error {
	tick := time.NewTicker(tunnel.WatchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		limited, cancel := context.WithTimeout(ctx, statusLimit)
		// Status reports why tunnels cannot be read.
		if differs, _ := a.tunnels.Watch(limited); differs {
			a.poke()
		}
		cancel()
		if a.kube != nil {
			a.kube.SetSilent(a.tunnels.SilentFor(askAfter))
		}
	}
}

// peerTraffic returns what the path MTU prober needs to know about a peer.
func (a *Agent) peerTraffic(p pathmtu.Peer) (pathmtu.Traffic, bool) {
	s, ok := a.tunnels.SentTo(p.Device, p.Name)
	return pathmtu.Traffic{Sent: s.Bytes, At: s.At, Silent: s.Contact == tunnel.ContactSilent,
		Segments: s.Kind == tunnel.Userspace}, ok
}

// sendSingly makes veil-wg send datagrams to a peer one by one: the path to it loses segmented
// ones.
func (a *Agent) sendSingly(ctx context.Context, p pathmtu.Peer) {
	limited, cancel := context.WithTimeout(ctx, statusLimit)
	defer cancel()
	if err := a.tunnels.SendSingly(limited, p.Device, p.Name); err != nil {
		a.log.Warn("the path to a peer loses segmented datagrams, and veil-wg cannot send single ones",
			"peer", p.Name, "device", p.Device, "err", err)
		return
	}
	a.log.Warn("the path to a peer loses segmented datagrams: they are sent one by one",
		"peer", p.Name, "device", p.Device)
}
