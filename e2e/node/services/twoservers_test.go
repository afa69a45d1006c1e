package services_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

const (
	// newWithin bounds the time from a server's loss of power until new connections to the API
	// servers' service succeed again.
	newWithin = time.Second
	// measured is the time after the loss in which no other test runs.
	measured = 3 * time.Second
	// closedWithin bounds the time until established connections to the lost server are closed.
	closedWithin = 6 * time.Second
	// followsWithin bounds the time until veild, which was connected to the lost server, follows
	// changes again: after a pause of client-go it connects to the other server and lists.
	followsWithin = 15 * time.Second
	// heldToAPI is the number of connections that a client holds. All lead to the same one of two
	// servers in one of 32,768 runs.
	heldToAPI = 16
)

// One of two API servers loses its power: the server to which veild itself is connected. The other
// server gets all new connections. Connections to the dead server are closed, so veild and programs
// that do not ping connect again; connections to the other server stay. The dead server may leave
// the list of endpoints before its connections are closed.
//
// A process of the host that connects to the second server's own address, which
// services.apiFrontends lists, also reaches both servers.
//
// No other test runs until new connections have been judged, because its load would be measured
// too. Then this test mostly waits, and others run. The name of this file puts it after
// TestServices, which needs the machine alone.
func TestServicesOfAPIServers(t *testing.T) {
	nodetest.Alone(t)
	for _, f := range []lab.Family{lab.Dual, lab.IPv6} {
		t.Run(string(f), func(t *testing.T) { loseAPIServer(t, f, config.ServiceProxyEBPF) })
	}
}

// The same holds beside kube-proxy, which translates all other services and is itself a client of
// the service kubernetes.
func TestAPIPathBesideKubeProxy(t *testing.T) {
	nodetest.Alone(t)
	for _, f := range []lab.Family{lab.Dual, lab.IPv6} {
		t.Run(string(f), func(t *testing.T) { loseAPIServer(t, f, config.ServiceProxyNone) })
	}
}

func loseAPIServer(t *testing.T, family lab.Family, proxy string) {
	first := netip.AddrPortFrom(family.Underlay(lab.ControlByte)[0].Addr(), lab.APIPort)
	second := netip.AddrPortFrom(family.Underlay(lab.ControlByte + 1)[0].Addr(), lab.APIPort)
	ctx, l := nodetest.AloneLab(t, lab.Options{Family: family, APIServers: 2, Nodes: 1,
		VeildConfig: map[string]any{
			"serviceProxy": proxy, "services": map[string]any{
				"limits":       map[string]any{"backendSlots": 1 << 16},
				"apiServers":   []string{first.String()},
				"apiFrontends": []string{second.String()}},
		}})
	n := l.Nodes()[0]
	pod := nodetest.AddPod(ctx, t, n, "client")
	backend := nodetest.EchoPods(ctx, t, l)[0]
	s, err := l.Control.Client.CoreV1().Services("default").Get(ctx, "kubernetes",
		metav1.GetOptions{})
	errtest.Must(t, err)
	to := netip.AddrPortFrom(netip.MustParseAddr(s.Spec.ClusterIP), uint16(s.Spec.Ports[0].Port))
	askServer(ctx, t, l, n, 1)
	if proxy == config.ServiceProxyNone {
		nodetest.KubeProxy(ctx, t, l, "nftables", n)
	}
	before := createService(ctx, t, l, "before", corev1.ProtocolTCP, backend)
	reach(ctx, t, pod, before.Spec.ClusterIP)
	waitFrontend(ctx, t, n, second, 2)
	procs := keepAPI(ctx, t, map[string]client{
		"a pod":                 {pod, to},
		"a process of the host": {n, to},
		// Like a kubelet whose kubeconfig names the lost server.
		"a process of the host, by that server's own address": {n, second},
	})
	cut := time.Now()
	errtest.Must(t, l.Control.Servers[1].Unplug(ctx, true))
	select {
	case <-ctx.Done():
		t.Fatal(ctx.Err())
	case <-time.After(time.Until(cut.Add(measured))):
	}
	after := createService(ctx, t, l, "after", corev1.ProtocolTCP, backend)
	t.Parallel()
	nodetest.NotAlone(t)

	for what, p := range procs {
		if err := p.WaitLine(ctx, "closed 1", time.Until(cut.Add(followsWithin))); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	followsWithout(ctx, t, pod, after, cut)
	// The same sweep closes the remaining connections to the dead server.
	nodetest.WaitStatus(ctx, t, n, 10*time.Second, func(s telemetry.Status) error {
		if bothUp(s) == nil {
			return fmt.Errorf("a server without power counts as one that answers: %+v",
				s.Services.APIServers)
		}
		return nil
	})
	for what, p := range procs {
		judgeAPI(ctx, t, what, p, cut)
	}
	waitFrontend(ctx, t, n, second, 1)
	nodetest.NoLeaks(t, l)
}

// client is the place of clients of the API servers, and the address that they use.
type client struct {
	from traffic.Place
	to   netip.AddrPort
}

// keepAPI makes all clients hold connections.
func keepAPI(ctx context.Context, t *testing.T, clients map[string]client) map[string]*lab.Process {
	t.Helper()
	procs := map[string]*lab.Process{}
	for what, c := range clients {
		p, err := traffic.KeepAPI(ctx, c.from, c.to, heldToAPI)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		procs[what] = p
	}
	return procs
}

// waitFrontend waits until an address of services.apiFrontends leads to this number of servers and
// no problem names it.
func waitFrontend(ctx context.Context, t *testing.T, n *lab.Node, addr netip.AddrPort,
	servers int) {
	t.Helper()
	nodetest.WaitStatus(ctx, t, n, 10*time.Second, func(s telemetry.Status) error {
		if f := s.Services.APIFrontends; len(f) != 1 || f[0].Addr != addr ||
			len(f[0].Servers) != servers {
			return fmt.Errorf("frontends %+v, want one that leads to %d servers", f, servers)
		}
		for _, p := range s.Problems {
			if strings.Contains(p, "apiFrontends") {
				return fmt.Errorf("problem: %s", p)
			}
		}
		return nil
	})
}

// bothUp returns an error unless two API servers answer and veild has listed all objects.
func bothUp(s telemetry.Status) error {
	if s.Services == nil || !s.Services.Listed || len(s.Services.APIServers) != 2 ||
		slices.ContainsFunc(s.Services.APIServers,
			func(a telemetry.APIServer) bool { return !a.Up }) {
		return fmt.Errorf("services %+v", s.Services)
	}
	return nil
}

// askServer starts veild again until it is connected to the wanted one of two API servers through
// their service. Twenty starts in a row reach only the other server in one of a million runs.
func askServer(ctx context.Context, t *testing.T, l *lab.Lab, n *lab.Node, wanted int) {
	t.Helper()
	for i := range 20 {
		if i > 0 {
			nodetest.KillProgram(ctx, t, n, "veild")
			nodetest.StartProgram(ctx, t, n, "veild")
		}
		nodetest.WaitStatus(ctx, t, n, 30*time.Second, bothUp)
		if asked := askedServer(ctx, t, l, n); asked == wanted {
			t.Logf("veild asks server %d at its start %d", wanted, i+1)
			return
		}
	}
	t.Fatalf("veild never asked server %d", wanted)
}

// ofProbe is the number of connections of a probe: one for pings and one for readiness.
const ofProbe = 2

// askedServer returns the index of the API server to which a node's veild is connected. veild has
// only the connections of its probe to the other server.
func askedServer(ctx context.Context, t *testing.T, l *lab.Lab, n *lab.Node) (asked int) {
	t.Helper()
	err := lab.Until(ctx, 10*time.Second, func() error {
		var open [2]int
		for i := range open {
			out, err := n.Exec(ctx, "ss", "-Htn", "state", "established", "dst",
				l.Control.ServerAddr(i).String())
			if err != nil {
				return lab.Stop(err)
			}
			open[i] = strings.Count(string(out), "\n")
		}
		for i := range open {
			if open[i] > ofProbe && open[1-i] == ofProbe {
				asked = i
				return nil
			}
		}
		return fmt.Errorf("connections to the servers: %v", open)
	})
	errtest.Must(t, err)
	return asked
}

// followsWithout checks that clients reach a service that was created after the loss of a server.
func followsWithout(ctx context.Context, t *testing.T, from traffic.Place, s *corev1.Service,
	cut time.Time) {
	t.Helper()
	for _, addr := range s.Spec.ClusterIPs {
		err := lab.Until(ctx, time.Until(cut.Add(followsWithin)), func() error {
			_, err := traffic.Send(ctx, from, traffic.Exchange{To: netip.MustParseAddr(addr),
				Port: 80, Count: 1, Timeout: time.Second})
			return err
		})
		if err != nil {
			t.Errorf("a service that was made after the server had gone, %s: %v", addr, err)
		}
	}
	t.Logf("a service that was made after the server had gone is reached %v after that",
		time.Since(cut).Round(time.Millisecond))
}

// judgeAPI ends the clients that held connections. It checks when the connections ended, and when
// new ones failed.
func judgeAPI(ctx context.Context, t *testing.T, what string, p *lab.Process, cut time.Time) {
	t.Helper()
	var r traffic.KeptAPI
	if err := p.Result(ctx, &r); err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}

	if r.Opened != heldToAPI || len(r.Closed) == 0 || len(r.Closed) == r.Opened {
		t.Errorf("%s: %d of %d held connections were closed, want those to one of two servers",
			what, len(r.Closed), r.Opened)
	}

	var lastClosed, lastFailed time.Duration
	for _, at := range r.Closed {
		if d := time.UnixMilli(at).Sub(cut); d < 0 {
			t.Errorf("%s: a held connection ended %v before", what, -d)
		} else {
			lastClosed = max(lastClosed, d)
		}
	}

	for _, at := range r.Failed {
		lastFailed = max(lastFailed, time.UnixMilli(at).Sub(cut))
	}

	if lastClosed > closedWithin {
		t.Errorf("%s: the last connection to a dead server was closed after %v", what, lastClosed)
	}
	if lastFailed > newWithin {
		t.Errorf("%s: a new connection that began after %v was of no use", what, lastFailed)
	}
	if r.Asked < 50 { // within some 5 s
		t.Errorf("%s: only %d new connections", what, r.Asked)
	}

	t.Logf("%s: %d of %d closed, the last after %v; of %d new ones %d of no use, the last "+
		"began after %v",
		what, len(r.Closed), r.Opened, lastClosed, r.Asked, len(r.Failed), lastFailed)
}
