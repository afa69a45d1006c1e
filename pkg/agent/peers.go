package agent

import (
	"context"
	"time"

	"github.com/kubeveil/kubeveil/pkg/pathmtu"
	"github.com/kubeveil/kubeveil/pkg/tunnel"
)

// watchPeers reads the counters of peers until ctx ends, often enough to tell a
// peer that does not answer from one that has nothing to say. It asks for a turn
// when somebody else changed a device.
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
		// Status shows what keeps tunnels from being read.
		if differs, _ := a.tunnels.Watch(limited); differs {
			a.poke()
		}
		cancel()
	}
}

// peerTraffic says what the prober of path MTUs asks about a peer.
func (a *Agent) peerTraffic(p pathmtu.Peer) (pathmtu.Traffic, bool) {
	s, ok := a.tunnels.SentTo(p.Device, p.Name)
	return pathmtu.Traffic{Sent: s.Bytes, At: s.At, Silent: s.Contact == tunnel.ContactSilent}, ok
}
