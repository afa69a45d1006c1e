package network_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// If the uplink is down briefly, or the network forges errors about the path, the node still
// accepts new pods, and no pod's MTU changes. As a control, a link that stays down makes the node
// not ready.
func TestFlapOfTheUplinkClosesNothing(t *testing.T) {
	ctx, l := nodetest.NewLab(t, lab.Options{})
	a, b := pair(ctx, t, l)
	n1 := l.Nodes()[0]
	nodetest.EchoAt(ctx, t, n1)
	mtu := nodetest.NodeStatus(ctx, t, n1).MTU.Pod
	before, err := abi.ReadMarker(n1.Path(abi.ReadyFile))
	errtest.Must(t, err)
	stays := func(when string) {
		t.Helper()
		if now, err := abi.ReadMarker(n1.Path(abi.ReadyFile)); err != nil ||
			!now.Written.Equal(before.Written) {
			t.Errorf("%s: the marker is of %s (%v), was of %s", when, now.Written, err,
				before.Written)
		}
		answersReady(ctx, t, n1, when, http.StatusOK)
		if err := podMTU(ctx, t, a, mtu); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}

	setUplink(ctx, t, l, false)
	waitProblem(ctx, t, n1, "the node refuses new pods in")
	stays("while the link is down")
	setUplink(ctx, t, l, true)
	noProblems(ctx, t, n1)
	stays("after the flap")
	talk(ctx, t, a, b)

	t.Run("a forged packet too big", func(t *testing.T) {
		believed := forgeTooBig(ctx, t, l)
		restartVeild(ctx, t, n1)
		if !believed() {
			t.Fatal("the kernel has forgotten it: the case shows nothing")
		}
		stays("after a forged packet too big")
		if now := nodetest.NodeStatus(ctx, t, n1).MTU.Pod; now != mtu {
			t.Errorf("the MTU of pods is %d, was %d", now, mtu)
		}
	})

	t.Run("control: a link that stays down", func(t *testing.T) {
		setUplink(ctx, t, l, false)
		nodetest.WaitStatus(ctx, t, n1, 2*time.Minute, func(s telemetry.Status) error {
			_, err := abi.ReadMarker(n1.Path(abi.ReadyFile))
			if err == nil {
				return fmt.Errorf("the marker is there; problems %q", s.Problems)
			}
			if !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			return nil
		})
		answersReady(ctx, t, n1, "after a minute", http.StatusServiceUnavailable)
		setUplink(ctx, t, l, true)
		nodetest.WaitReady(ctx, t, n1)
		talk(ctx, t, a, b)
	})
	nodetest.NoLeaks(t, l)
}

// setUplink sets the first node's link to the underlay up or down. Like a network manager, it
// removes the addresses with the link and restores them.
func setUplink(ctx context.Context, t *testing.T, l *lab.Lab, up bool) {
	t.Helper()
	n := l.Nodes()[0]
	lines := []string{"link set eth0 down", "address flush dev eth0"}
	if up {
		lines = []string{"link set eth0 up",
			fmt.Sprintf("address replace %s/24 dev eth0", n.Addrs[0]),
			fmt.Sprintf("address replace %s/64 dev eth0 nodad", n.Addrs[1])}
		for _, gateway := range l.OutsideAddrs() {
			lines = append(lines, fmt.Sprintf("route replace default via %s dev eth0", gateway))
		}
	}
	errtest.Must(t, n.IP(ctx, lines...))
}

// answersReady checks that veild's /readyz has the HTTP status want.
func answersReady(ctx context.Context, t *testing.T, n *lab.Node, when string, want int) {
	t.Helper()
	answer, err := get(ctx, t, n.Host, abi.MetricsAddress, "/readyz")
	if err != nil {
		t.Errorf("%s: /readyz: %v", when, err)
	} else if answer.StatusCode != want {
		t.Errorf("%s: /readyz answers %s, want %d", when, answer.Status, want)
	}
}

// noProblems waits until veild reports no problems.
func noProblems(ctx context.Context, t *testing.T, n *lab.Node) {
	t.Helper()
	nodetest.WaitStatus(ctx, t, n, 20*time.Second, func(s telemetry.Status) error {
		if len(s.Problems) > 0 {
			return fmt.Errorf("problems: %q", s.Problems)
		}
		return nil
	})
}

// tooNarrowForPods is an MTU of the underlay that is valid for IPv4 and IPv6, but too small for
// tunnels.
const tooNarrowForPods = 1281

// forgeTooBig sends the first node, from outside, errors that datagrams from its echo server to the
// second node are too big for the path. It returns after the kernel has stored the smaller MTU for
// both families. believed reports whether the kernel still has it.
func forgeTooBig(ctx context.Context, t *testing.T, l *lab.Lab) (believed func() bool) {
	t.Helper()
	n1, n2 := l.Nodes()[0], l.Nodes()[1]
	believed = func() bool {
		for _, to := range n2.Addrs {
			out := nodetest.Run(ctx, t, n1, "ip", "route", "get", to.String(), "mark",
				fmt.Sprint(abi.TunnelMark))
			if !strings.Contains(out, fmt.Sprintf(" mtu %d", tooNarrowForPods)) {
				return false
			}
		}
		return true
	}

	from, _ := nodetest.LinkOf(ctx, t, l.Outside, "eth0")
	to, _ := nodetest.LinkOf(ctx, t, n1, "eth0")
	for i, src := range l.OutsideAddrs() {
		nodetest.Inject(ctx, t, l.Outside, "eth0", nodetest.Datagram{From: from, To: to,
			Src: n1.Addrs[i], Dst: n2.Addrs[i], SrcPort: traffic.EchoPort, DstPort: 123}.TooBig(src,
			tooNarrowForPods))
	}
	err := lab.Until(ctx, 5*time.Second, func() error {
		if !believed() {
			return errors.New("the kernel did not believe a forged packet too big")
		}
		return nil
	})
	errtest.Must(t, err)
	return believed
}
