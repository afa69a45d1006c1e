package network_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// The status of a node names disturbances by other programs while they exist. The parts share a
// lab. Each part restores its state, except for counters.
func TestWhatOtherProgramsDoIsNamed(t *testing.T) {
	ctx, l := nodetest.NewLab(t, lab.Options{NoAPIServer: true})
	a, b := pair(ctx, t, l)
	for _, part := range []struct {
		name string
		run  func(ctx context.Context, t *testing.T, l *lab.Lab, a, b *lab.Pod)
	}{
		{"another CNI configuration", anotherConflist},
		{"a firewall that comes later", firewallLater},
		{"a firewall that was there before", firewallBefore},
		{"a link inside a cluster range", linkInsideARange},
	} {
		t.Run(part.name, func(t *testing.T) { part.run(ctx, t, l, a, b) })
	}
	nodetest.NoLeaks(t, l)
}

// firewallBefore checks that a node whose firewall drops its pods' packets into the tunnel is not
// ready, and that its status names the chain. It becomes ready when the firewall accepts them.
func firewallBefore(ctx context.Context, t *testing.T, l *lab.Lab, a, b *lab.Pod) {
	n := l.Nodes()[0]
	nodetest.Run(ctx, t, n, "nft",
		"table inet site { chain forward { type filter hook forward priority 0; policy drop; }; }")
	nodetest.KillProgram(ctx, t, n, "veild")
	nodetest.StartProgram(ctx, t, n, "veild")
	s := waitProblem(ctx, t, n, "forwarded packets of pods are dropped")
	if !strings.Contains(strings.Join(s.Problems, ";"),
		"the chain forward in nftables table inet site") {
		t.Errorf("problems %q do not name the chain", s.Problems)
	}

	if s.Ready {
		t.Error("the node is ready")
	}

	nodetest.Run(ctx, t, n, "nft", "delete table inet site")
	nodetest.WaitStatus(ctx, t, n, 40*time.Second, func(s telemetry.Status) error {
		if !s.Ready || len(s.Problems) > 0 {
			return errors.New("it is not ready again")
		}
		return nil
	})
	nodetest.Meet(ctx, t, a, b)
}

// firewallLater checks that the status names within a minute a filter that is added after the node
// was ready. The node is not ready until pods' packets pass again.
func firewallLater(ctx context.Context, t *testing.T, l *lab.Lab, a, b *lab.Pod) {
	n := l.Nodes()[0]
	for i, tt := range []struct{ add, remove, names string }{
		{"table inet site { chain forward { type filter hook forward priority 0; policy drop; }; }",
			"delete table inet site", "the chain forward in nftables table inet site"},
		{"table ip filter { chain DOCKER-USER { }; chain FORWARD { type filter hook forward " +
			"priority 0; policy drop; }; }", "delete table ip filter", "of Docker"},
	} {
		t.Run(tt.names, func(t *testing.T) {
			if i > 0 {
				nettest.NeedLong(t, "waits for the pause between two probes")
			}
			nodetest.Run(ctx, t, n, "nft", tt.add)
			s := nodetest.WaitStatus(ctx, t, n, time.Minute, func(s telemetry.Status) error {
				if !strings.Contains(strings.Join(s.Problems, ";"), tt.names) {
					return fmt.Errorf("it does not name %s", tt.names)
				}
				return nil
			})
			if s.Ready {
				t.Errorf("the node is ready with %q", s.Problems)
			}

			nodetest.Run(ctx, t, n, "nft", tt.remove)
			nodetest.WaitStatus(ctx, t, n, 40*time.Second, func(s telemetry.Status) error {
				if !s.Ready || len(s.Problems) > 0 {
					return errors.New("it is not ready again")
				}
				return nil
			})
			nodetest.Meet(ctx, t, a, b)
		})
	}
}
