package policy_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// A pod that opened as many connections as podConnections allows opens no more, with each policy and
// over both address families. Its open connections, and connections to it, continue, and so do the
// connections of another pod. The status names the pod.
func TestPodOpensConnectionsUpToItsLimit(t *testing.T) {
	const limit = 30

	for _, name := range []string{config.PolicyNone, config.PolicyKubernetes} {
		t.Run(name, func(t *testing.T) {
			ctx, l := nodetest.NewLab(t, lab.Options{VeildConfig: map[string]any{"policy": name,
				"podConnections": limit}})
			errtest.Must(t, l.Control.AddNamespace(ctx, nodetest.Shop))
			n1, n2 := l.Nodes()[0], l.Nodes()[1]
			server := nodetest.StartPod(ctx, t, n1, "server")
			greedy := nodetest.StartPod(ctx, t, n2, "greedy")
			modest := nodetest.StartPod(ctx, t, n2, "modest")
			if name == config.PolicyKubernetes {
				nodetest.WaitMembers(ctx, t, n1, 1)
				nodetest.WaitMembers(ctx, t, n2, 2)
			}
			nodetest.EchoAt(ctx, t, server)
			nodetest.EchoAt(ctx, t, greedy)
			// Until a node knows the other, it refuses connections to the other's pods.
			for from, to := range map[*lab.Pod]*lab.Pod{modest: server, server: greedy} {
				for _, addr := range to.Addrs {
					errtest.Must(t, lab.Until(ctx, time.Minute, func() error {
						return opens(ctx, from, addr, 2*time.Second)
					}))
				}
			}
			held := nodetest.Hold(ctx, t, greedy, server.Addrs[0])

			var c *telemetry.Connections
			errtest.Must(t, lab.Until(ctx, time.Minute, func() error {
				for _, to := range server.Addrs {
					_ = opens(ctx, greedy, to, 2*time.Second)
				}
				if c = nodetest.NodeStatus(ctx, t, n2).Connections; c == nil || len(c.Limited) != 1 {
					return fmt.Errorf("the pod is not at its limit: %+v", c)
				}
				return nil
			}))
			for _, to := range server.Addrs {
				if opens(ctx, greedy, to, 2*time.Second) == nil {
					t.Errorf("the pod opened a connection to %s beyond its limit", to)
				}
				errtest.Must(t, opens(ctx, modest, to, 20*time.Second))
			}
			for _, to := range greedy.Addrs {
				errtest.Must(t, opens(ctx, server, to, 20*time.Second))
			}

			c = nodetest.NodeStatus(ctx, t, n2).Connections
			if c.Limit != limit || c.Dropped == 0 || c.Limited[0].Opened < limit*9/10 {
				t.Errorf("status %+v", c)
			}
			var h traffic.Held
			if err := held.Result(ctx, &h); err != nil || h.Records == 0 {
				t.Errorf("the open connection: %+v, %v", h, err)
			}
			nodetest.NoLeaks(t, l)
		})
	}
}

// opens opens a connection, and exchanges one message.
func opens(ctx context.Context, from *lab.Pod, to netip.Addr, limit time.Duration) error {
	_, err := traffic.Send(ctx, from, traffic.Exchange{To: to, Count: 1, Timeout: limit})
	return err
}
