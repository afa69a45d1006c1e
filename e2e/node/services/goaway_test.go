package services_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// movesWithin is shorter than the time after which veild uses another connection by itself.
const movesWithin = 4 * time.Minute

// If an API server sends GOAWAY after one request in fifty, veild sends later requests on another
// connection. The watches on the old connection continue, and veild closes nothing.
func TestGoawayMovesRequestsAndEndsNoWatch(t *testing.T) {
	first := netip.AddrPortFrom(lab.IPv4.Underlay(lab.ControlByte)[0].Addr(), lab.APIPort)
	ctx, l := nodetest.NewLab(t, lab.Options{Family: lab.IPv4, APIServers: 2, Nodes: 1,
		APIServerFlags: func(int) []string { return []string{"--goaway-chance=0.02"} },
		VeildConfig: map[string]any{
			"serviceProxy": "ebpf", "services": map[string]any{
				"limits":     map[string]any{"backendSlots": 1 << 16},
				"apiServers": []string{first.String()}},
		}})
	n := l.Nodes()[0]
	nodetest.KillProgram(ctx, t, n, "veild")
	started := time.Now()
	nodetest.StartProgram(ctx, t, n, "veild")
	nodetest.WaitStatus(ctx, t, n, 30*time.Second, bothUp)
	askedServer(ctx, t, l, n)
	before := apiPorts(ctx, t, n)

	moved, requests := before, 0
	for len(added(before, moved)) == 0 {
		if time.Since(started) > movesWithin {
			t.Fatalf("%d requests, and all went over the connections of ports %v", requests, before)
		}
		publishAgain(ctx, t, l, n)
		moved = apiPorts(ctx, t, n)
		requests++
	}
	t.Logf("after %d requests there is a connection of port %v beside %v", requests,
		added(before, moved), before)

	if gone := added(moved, before); len(gone) > 0 {
		t.Errorf("connections of ports %v have ended, with their watches", gone)
	}
	// This change must arrive by a watch that was open before.
	publishAgain(ctx, t, l, n)
	nodetest.WaitStatus(ctx, t, n, 10*time.Second, func(s telemetry.Status) error {
		if err := bothUp(s); err != nil {
			return err
		}
		if c := s.Services.APIClosed; c.Waiting+c.Rest > 0 || len(s.Problems) > 0 {
			return fmt.Errorf("veild closed %+v, problems %q", c, s.Problems)
		}
		return nil
	})
	nodetest.NoLeaks(t, l)
}

// publishAgain deletes a node's VeilNode and waits until veild has created it again. veild sees the
// deletion by its watch, and the creation is a request.
func publishAgain(ctx context.Context, t *testing.T, l *lab.Lab, n *lab.Node) {
	t.Helper()
	claims := l.Control.Dynamic.Resource(nodetest.VeilNodes)
	var old types.UID
	err := lab.Until(ctx, 20*time.Second, func() error {
		now, err := claims.Get(ctx, n.Name, metav1.GetOptions{})
		switch {
		case err != nil:
			return err
		case old == "":
			old = now.GetUID()
			if err := claims.Delete(ctx, n.Name, metav1.DeleteOptions{}); err != nil {
				return err
			}
			fallthrough
		case now.GetUID() == old:
			return fmt.Errorf("VeilNode %s is the one that was deleted", n.Name)
		}
		return nil
	})
	errtest.Must(t, err)
}

// apiPorts returns the ports of a node's connections to API servers, in order.
func apiPorts(ctx context.Context, t *testing.T, n *lab.Node) []uint16 {
	t.Helper()
	var ports []uint16
	out := nodetest.Run(ctx, t, n, "ss", "-Htn", "state", "established", "dport", "=",
		fmt.Sprintf(":%d", lab.APIPort))
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if len(fields) < 4 {
			t.Fatalf("ss prints %q", line)
		}
		local, err := netip.ParseAddrPort(fields[2])
		errtest.Must(t, err)
		ports = append(ports, local.Port())
	}
	slices.Sort(ports)
	return ports
}

// added returns the elements of now that before lacks.
func added(before, now []uint16) []uint16 {
	return slices.DeleteFunc(slices.Clone(now),
		func(p uint16) bool { return slices.Contains(before, p) })
}
