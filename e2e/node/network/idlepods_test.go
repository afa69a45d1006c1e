package network_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/guard/chains"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// Twenty pods are idle for a minute; in long runs, a hundred pods for ten minutes. The guard must
// not count their packets as spoofed or blocked: the packets that a kernel sends by itself have a
// separate counter.
func TestIdlePodsAreNotSpoofers(t *testing.T) {
	pods, idle := 20, time.Minute
	if nettest.Long() {
		pods, idle = 100, 10*time.Minute
	}
	for _, family := range []lab.Family{lab.IPv4, lab.Dual} {
		t.Run(string(family), func(t *testing.T) {
			t.Parallel()
			ctx, l := nodetest.LongLab(t, lab.Options{NoAPIServer: true, Family: family},
				idle+5*time.Minute)
			n := l.Nodes()[0]
			for i := range pods {
				nodetest.AddPod(ctx, t, n, fmt.Sprintf("idle-%d", i))
			}
			select {
			case <-time.After(idle):
			case <-ctx.Done():
				t.Fatal(ctx.Err())
			}

			s := nodetest.NodeStatus(ctx, t, n)
			if s.Pods != pods || blockedPods(s.Guard) > 0 || len(s.Problems) > 0 {
				t.Errorf("%d pods, drops %+v, problems %q; want %d and no drop but pod_link_local",
					s.Pods, s.Guard.Drops, s.Problems, pods)
			}
			if apart := nodetest.Dropped(ctx, t, n, chains.PodLinkLocal); apart < uint64(pods) {
				t.Errorf("%d packets of the pods' kernels, want one of each pod at least", apart)
			}
			nodetest.NoLeaks(t, l)
		})
	}
}

// blockedPods returns how many packets of pods the guard dropped, without harmless ones.
func blockedPods(g telemetry.Guard) (packets uint64) {
	for _, d := range g.Drops {
		if !d.Harmless && d.Name != chains.TunnelUnknownSource {
			packets += d.Packets
		}
	}
	return packets
}
