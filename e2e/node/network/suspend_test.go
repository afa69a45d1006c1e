package network_test

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// While a machine is suspended, nothing of its pods or to them leaves in clear. Its peer reports it
// once the silence is longer than an idle peer's. Pods talk both ways within 20 s after it is
// resumed, also when its sessions have expired (REJECT_AFTER_TIME, 180 s).
const resumed = 20 * time.Second

// TestAMachineIsSuspended stops all programs of a node. Its kernel goes on, and with it the pods'
// packets, which then have no tunnel.
func TestAMachineIsSuspended(t *testing.T) {
	ctx, l := nodetest.NewLab(t, lab.Options{})
	pods := nodetest.EchoPods(ctx, t, l)
	nodetest.Meet(ctx, t, pods[0], pods[1])
	for _, d := range []time.Duration{12 * time.Second, 200 * time.Second} {
		t.Run(fmt.Sprint(d), func(t *testing.T) {
			if d > time.Minute {
				nettest.NeedLong(t, "a shorter time is covered")
			}
			suspended(ctx, t, l, pods, d)
		})
	}
	nodetest.NoLeaks(t, l)
}

func suspended(ctx context.Context, t *testing.T, l *lab.Lab, pods []*lab.Pod, d time.Duration) {
	t.Helper()
	n1, n2 := l.Nodes()[0], l.Nodes()[1]
	signal := func(s syscall.Signal) {
		t.Helper()
		for _, name := range []string{"veild", "veil-wg"} {
			_, err := n2.Signal(name, s) // a device of veil-wg has a process of its own
			errtest.Must(t, errors.Join(err, n2.Program(name).Signal(s)))
		}
	}

	signal(syscall.SIGSTOP)
	end := time.Now().Add(d)
	named := false
	for time.Now().Before(end) {
		for i, p := range pods {
			if nodetest.Talks(ctx, p, pods[1-i].Addrs[:1]) > 0 {
				t.Errorf("%s reaches the other pod while its node is suspended", p.Name)
			}
		}
		for _, p := range nodetest.NodeStatus(ctx, t, n1).Peers {
			named = named || p.State == telemetry.PeerSilent
		}
	}
	if !named && d > time.Minute {
		t.Errorf("%s does not say that its peer is silent", n1.Name)
	}

	signal(syscall.SIGCONT)
	began := time.Now()
	err := lab.Until(ctx, resumed, func() error {
		if nodetest.Talks(ctx, pods[0], pods[1].Addrs) < len(pods[1].Addrs) ||
			nodetest.Talks(ctx, pods[1], pods[0].Addrs) < len(pods[0].Addrs) {
			return errors.New("the pods do not reach each other at all addresses")
		}
		return nil
	})
	if err != nil {
		t.Errorf("after %v suspended: %v", d, err)
	}
	t.Logf("after %v suspended, pods talked both ways within %v", d,
		time.Since(began).Round(10*time.Millisecond))
}
