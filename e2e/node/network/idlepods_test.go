package network_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/pkg/guard/chains"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// A hundred pods do nothing for a minute, and in long runs for ten. They are neither spoofers nor
// blocked: the packets that their kernels send by themselves have a counter of their own.
func TestIdlePodsAreNotSpoofers(t *testing.T) {
	idle := time.Minute
	if os.Getenv(longEnv) != "" {
		idle = 10 * time.Minute
	}
	for _, family := range []lab.Family{lab.IPv4, lab.Dual} {
		t.Run(string(family), func(t *testing.T) {
			t.Parallel()
			ctx, l := nodetest.LongLab(t, lab.Options{NoAPIServer: true, Family: family},
				idle+5*time.Minute)
			n := l.Nodes()[0]
			for i := range 100 {
				nodetest.AddPod(ctx, t, n, fmt.Sprintf("idle-%d", i))
			}
			select {
			case <-time.After(idle):
			case <-ctx.Done():
				t.Fatal(ctx.Err())
			}

			s := nodetest.NodeStatus(ctx, t, n)
			if s.Pods != 100 || blockedPods(s.Guard) > 0 || len(s.Problems) > 0 {
				t.Errorf("%d pods, drops %+v, problems %q; want 100 and no drop but pod_link_local",
					s.Pods, s.Guard.Drops, s.Problems)
			}
			t.Logf("counted apart: %d", nodetest.Dropped(ctx, t, n, "pod_link_local"))
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
