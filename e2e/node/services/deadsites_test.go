package services_test

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// A service has an endpoint here and one in another cluster, whose node loses its power. Soon new
// connections go to the endpoint here only, and a known one to the other ends.
func TestDeadSiteGetsNoNewConnections(t *testing.T) {
	ctx, l := nodetest.NewLab(t, lab.Options{Sites: true})
	letReadServices(ctx, t, l)
	a, b := l.Nodes()[0], l.Nodes()[1]
	sites := l.SitesOf(a)
	sites[0].Reach = ""
	nodetest.Reconfigure(ctx, t, a, map[string]any{"sites": sites, "serviceProxy": "ebpf",
		"services": map[string]any{"cgroup": "/sys/fs/cgroup"}, "linkLocalOutside": []string{}})
	nodetest.WaitReady(ctx, t, a)
	client, backends := namedPods(ctx, t, l, 1, "near", "far")
	s := publish(ctx, t, l, "web", corev1.ServiceSpec{}, backends...)
	ask := func(names ...string) {
		t.Helper()
		for _, ip := range s.Spec.ClusterIPs {
			answers(ctx, t, client, traffic.Question{Count: 12, Timeout: 300 * time.Millisecond,
				To: netip.AddrPortFrom(netip.MustParseAddr(ip), servicePort)}, everyone(names...))
		}
	}
	ask("near", "far")
	// The kernel of the other node answers. Its veild may be away.
	nodetest.KillProgram(ctx, t, b, "veild")
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); {
		ask("near", "far")
	}

	nodetest.EchoAt(ctx, t, backends[1])
	held := nodetest.Hold(ctx, t, client, backends[1].Addr(false))
	errtest.Must(t, b.Crash())
	began := time.Now()
	ask("near")
	t.Logf("new connections went elsewhere after %s", time.Since(began).Round(time.Millisecond))
	errtest.Must(t, lab.Until(ctx, 20*time.Second, func() error {
		if held.Running() {
			return errors.New("the known connection to the dead node waits")
		}
		return nil
	}))
	t.Logf("the known connection ended after %s", time.Since(began).Round(time.Millisecond))
	// The status is published after connections were closed.
	nodetest.WaitStatus(ctx, t, a, 20*time.Second, func(s telemetry.Status) error {
		if s.Services == nil || s.Services.SiteClosed == 0 {
			return fmt.Errorf("services %+v", s.Services)
		}
		return nil
	})
	nodetest.NoLeaks(t, l)
}
