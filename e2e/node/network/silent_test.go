package network_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// A peer that goes away is not a problem until something is sent to it. Then it is silent within a
// minute, in the metrics too, until it answers again.
func TestPeerThatDoesNotAnswerIsSilent(t *testing.T) {
	ctx, l := nodetest.NewLab(t, lab.Options{})
	a, b := pair(ctx, t, l)
	n1, n2 := l.Nodes()[0], l.Nodes()[1]
	state := func(want telemetry.PeerState) {
		t.Helper()
		nodetest.WaitStatus(ctx, t, n1, time.Minute, func(s telemetry.Status) error {
			named := strings.Contains(strings.Join(s.Problems, "\n"), "has not answered for")
			if len(s.Peers) != 1 || s.Peers[0].State != want ||
				named != (want == telemetry.PeerSilent) ||
				s.Peers[0].SilentSince.IsZero() == (want == telemetry.PeerSilent) {
				return fmt.Errorf("peers %+v, problems %q, want one that is %s", s.Peers,
					s.Problems, want)
			}
			return nil
		})
	}

	state(telemetry.PeerUp)
	crash(t, n2)
	nodetest.Source(ctx, t, a, b.Addr(false), interval)

	state(telemetry.PeerSilent)
	if m := nodeMetrics(ctx, t, n1); !strings.Contains(m, `kubeveil_peers{state="silent"} 1`) {
		t.Errorf("the metrics do not count it")
	}
	errtest.Must(t, n2.Boot(ctx, true))

	state(telemetry.PeerUp)
	nodetest.NoLeaks(t, l)
}

// After ten minutes without a packet the first one arrives: no keepalive is needed.
func TestFirstPacketAfterIdleMinutes(t *testing.T) {
	nettest.NeedLong(t, "it waits for ten minutes")
	t.Parallel()
	const idle = 10 * time.Minute
	ctx, l := nodetest.LongLab(t, lab.Options{}, 3*idle)
	a, b := pair(ctx, t, l)
	select {
	case <-time.After(idle):
	case <-ctx.Done():
		t.Fatal(ctx.Err())
	}
	for _, n := range l.Nodes() {
		s := nodetest.NodeStatus(ctx, t, n)
		if len(s.Peers) != 1 || s.Peers[0].State != telemetry.PeerIdle || len(s.Problems) > 0 {
			t.Errorf("%s: peers %+v, problems %q, want one idle peer", n.Name, s.Peers, s.Problems)
		}
	}
	r, err := traffic.Send(ctx, a, traffic.Exchange{Proto: "udp", To: b.Addr(false), Count: 1,
		Size: 100, Timeout: 5 * time.Second})
	if err != nil {
		t.Errorf("the first packet: %+v, %v", r, err)
	}
	nodetest.NoLeaks(t, l)
}
