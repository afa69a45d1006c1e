package network_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// IPv6 is added to a running cluster of IPv4. Kubernetes never changes a Node's pod prefixes, so
// IPv6 comes with nodes that join. A node whose configuration does not have the new ranges yet
// keeps its peers by IPv4. It reports the ranges that it does not accept, and sends nothing to
// them. Within 20 s after all nodes have the ranges, pods reach each other through the tunnel by
// each family that both have. Existing connections continue.
func TestAFamilyIsAdded(t *testing.T) {
	four := map[string]any{"clusterRanges": lab.IPv4.ClusterRanges(),
		"serviceRanges": lab.IPv4.ServiceRanges()}
	dual := map[string]any{"clusterRanges": lab.Dual.ClusterRanges(),
		"serviceRanges": lab.Dual.ServiceRanges()}
	ctx, l := nodetest.NewLab(t, lab.Options{Nodes: -1, VeildConfig: four})
	add := func(family lab.Family, settings map[string]any) *lab.Pod {
		t.Helper()
		n, err := l.AddNodeFor(ctx, family.PodPrefixes(len(l.Nodes())+1))
		errtest.Must(t, err)
		nodetest.Reconfigure(ctx, t, n, settings)
		nodetest.WaitReady(ctx, t, n)
		return nodetest.EchoPod(ctx, t, n, "echo")
	}
	a, b := add(lab.IPv4, four), add(lab.IPv4, four)
	nodetest.Meet(ctx, t, a, b)
	held := nodetest.Hold(ctx, t, a, b.Addr(false))

	c := add(lab.Dual, dual)
	unknown := lab.Dual.PodPrefixes(3)[1].String()
	nodetest.WaitStatus(ctx, t, a.Node, time.Minute, func(s telemetry.Status) error {
		if !strings.Contains(strings.Join(s.Problems, "\n"), unknown) {
			return fmt.Errorf("problems %q, want one that names %s", s.Problems, unknown)
		}
		return nil
	})
	talk(ctx, t, a, b)

	d := add(lab.Dual, dual)
	nodetest.Reconfigure(ctx, t, a.Node, dual)
	nodetest.Reconfigure(ctx, t, b.Node, dual)
	began := time.Now()
	err := lab.Until(ctx, 20*time.Second, func() error { return allTalk(ctx, a, b, c, d) })
	if err != nil {
		t.Error(err)
	}
	t.Logf("all pods talked %v after the last node had both families",
		time.Since(began).Round(10*time.Millisecond))

	var h traffic.Held
	if err := held.Result(ctx, &h); err != nil {
		t.Errorf("a connection of before: %v", err)
	}
	nodetest.NoLeaks(t, l)
}

// allTalk checks that pods reach each other by each family that both have.
func allTalk(ctx context.Context, pods ...*lab.Pod) error {
	for _, from := range pods {
		for _, to := range pods {
			for _, addr := range to.Addrs {
				if from == to || !from.Addr(addr.Is6()).IsValid() {
					continue
				}
				if nodetest.Talks(ctx, from, []netip.Addr{addr}) == 0 {
					return fmt.Errorf("%s does not reach %s", from.Node.Name, addr)
				}
			}
		}
	}
	return nil
}
