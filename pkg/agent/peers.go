package agent

import (
	"context"
	"time"

	"github.com/kubeveil/kubeveil/pkg/tunnel"
)

// watchPeers reads the counters of peers until ctx ends, often enough to tell a
// peer that does not answer from one that has nothing to say.
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
		_, _ = a.tunnels.Status(limited)
		cancel()
	}
}
