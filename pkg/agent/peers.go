package agent

import (
	"context"
	"time"

	"github.com/kubeveil/kubeveil/pkg/pathmtu"
	"github.com/kubeveil/kubeveil/pkg/tunnel"
)

// watchPeers reads the counters of peers until ctx ends, often enough to tell a silent peer from an
// idle one. It asks for a turn when another program changed a device.
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
	}
}

// peerTraffic returns what the path MTU prober needs to know about a peer.
func (a *Agent) peerTraffic(p pathmtu.Peer) (pathmtu.Traffic, bool) {
	s, ok := a.tunnels.SentTo(p.Device, p.Name)
	return pathmtu.Traffic{Sent: s.Bytes, At: s.At, Silent: s.Contact == tunnel.ContactSilent}, ok
}
