package services_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// A range of services that is added at run time is closed like a range of the configuration: a
// packet to an address that no program translates does not leave the node. A range that contains
// nodes is refused and reported.
func TestAddedServiceRangeIsClosed(t *testing.T) {
	for _, proxy := range []string{"none", "ebpf"} {
		t.Run("serviceProxy "+proxy, func(t *testing.T) {
			config := map[string]any{"serviceProxy": proxy}
			if proxy == "ebpf" {
				config["services"] = map[string]any{
					"limits": map[string]any{"backendSlots": 1 << 16}}
			}
			ctx, l := nodetest.NewLab(t, lab.Options{Nodes: 1, VeildConfig: config})
			n := l.Nodes()[0]
			pod := nodetest.EchoPod(ctx, t, n, "client")

			addServiceCIDR(ctx, t, l.Control, "more", l.Family().AddedRanges())
			var addrs []netip.Addr
			for _, r := range l.Family().AddedRanges() {
				addrs = append(addrs, r.Addr().Next())
				if err := lab.Until(ctx, 20*time.Second, func() error {
					return unreachable(ctx, n, r)
				}); err != nil {
					t.Error(err)
				}
			}
			for _, from := range []traffic.Place{pod, n} {
				if k := nodetest.Talks(ctx, from, addrs); k > 0 {
					t.Errorf("%d addresses of the added range answered", k)
				}
			}

			addServiceCIDR(ctx, t, l.Control, "nodes", l.Family().Underlay(0))
			nodetest.WaitStatus(ctx, t, n, 20*time.Second, func(s telemetry.Status) error {
				text := strings.Join(s.Problems, "\n")
				if !strings.Contains(text, "of ServiceCIDR nodes is not closed") || !s.Ready {
					return fmt.Errorf("ready %t, problems %q", s.Ready, s.Problems)
				}
				return nil
			})
			nodetest.NoLeaks(t, l)
		})
	}
}

func addServiceCIDR(ctx context.Context, t *testing.T, c *lab.Control, name string,
	ranges []netip.Prefix) {
	t.Helper()
	object := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, r := range ranges {
		object.Spec.CIDRs = append(object.Spec.CIDRs, r.String())
	}
	_, err := c.Client.NetworkingV1().ServiceCIDRs().Create(ctx, object, metav1.CreateOptions{})
	errtest.Must(t, err)
}

// unreachable returns an error unless a node has a route that closes a range.
func unreachable(ctx context.Context, n *lab.Node, r netip.Prefix) error {
	family := "-4"
	if r.Addr().Is6() {
		family = "-6"
	}
	out, err := n.Exec(ctx, "ip", family, "route", "show", "table", "all", "type", "unreachable")
	if err == nil && !strings.Contains(string(out), r.String()) {
		err = fmt.Errorf("%s is not unreachable: %s", r, out)
	}
	return err
}
