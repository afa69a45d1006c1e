package network_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// linkInsideARange adds a bridge of another program whose network is inside the other node's pod
// prefix. It checks that the status and veild check name the bridge, and that pods still reach each
// other and nothing leaves in clear.
func linkInsideARange(ctx context.Context, t *testing.T, l *lab.Lab, a, b *lab.Pod) {
	n := l.Nodes()[0]
	network := netip.PrefixFrom(l.Nodes()[1].PodPrefixes[0].Addr().Next(), 25).String()
	nodetest.Run(ctx, t, n, "ip", "link", "add", "docker0", "type", "bridge")
	nodetest.Run(ctx, t, n, "ip", "addr", "add", network, "dev", "docker0")
	nodetest.Run(ctx, t, n, "ip", "link", "set", "docker0", "up")

	nodetest.WaitStatus(ctx, t, n, 20*time.Second, func(s telemetry.Status) error {
		if !strings.Contains(strings.Join(s.Problems, ";"), "docker0") || !s.Ready {
			return errors.New("it does not name docker0, or is not ready")
		}
		return nil
	})
	out, err := n.Exec(ctx, l.Program("veild"), "check", "--config", "/etc/kubeveil/veild.yaml")
	if !strings.Contains(string(out), "docker0") {
		t.Errorf("veild check does not name docker0: %s %v", out, err)
	}
	nodetest.Meet(ctx, t, a, b)

	nodetest.Run(ctx, t, n, "ip", "link", "del", "docker0")
	nodetest.WaitStatus(ctx, t, n, 20*time.Second, func(s telemetry.Status) error {
		if p := strings.Join(s.Problems, ";"); strings.Contains(p, "docker0") {
			return fmt.Errorf("it names docker0 still: %s", p)
		}
		return nil
	})
}
