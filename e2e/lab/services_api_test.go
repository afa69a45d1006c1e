package lab_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

const (
	// newWithin is when new connections to the API servers' service succeed again after one of them has lost its power; half a second more
	// is for a machine on which other labs run beside.
	newWithin = 1500 * time.Millisecond
	// closedWithin is when those that were established to it are closed.
	closedWithin = 45 * time.Second
	// heldToAPI is how many connections are held: all to one of two servers once in 32,768 times.
	heldToAPI = 16
)

// One of two API servers loses its power. The other takes all that is new, and what was established to the dead one is closed, so that programs which do not ping
// connect anew; what was established to the other stays. Nobody has told veild of the one that dies but the list of endpoints, from which it goes before that.
func TestServicesOfAPIServers(t *testing.T) {
	ctx, l := newLab(t, lab.Options{APIServers: 2, Nodes: 1, VeildConfig: map[string]any{
		"serviceProxy": "ebpf", "services": map[string]any{"limits": map[string]any{"slots": 1 << 16}},
	}})
	n := l.Nodes()[0]
	pod, err := n.AddPod(ctx, "client", lab.PodOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.Control.Client.CoreV1().Services("default").Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	to := netip.AddrPortFrom(netip.MustParseAddr(s.Spec.ClusterIP), uint16(s.Spec.Ports[0].Port))
	both := func(s telemetry.Status) error {
		if s.Services == nil || len(s.Services.APIServers) != 2 || slices.ContainsFunc(s.Services.APIServers, func(a telemetry.APIServer) bool { return !a.Up }) {
			return fmt.Errorf("services %+v", s.Services)
		}
		return nil
	}
	waitStatus(ctx, t, n, 30*time.Second, both)
	places := map[string]lab.Place{"a pod": pod, "a process of the host": n}
	procs := map[string]*lab.Process{}
	for what, from := range places {
		if procs[what], err = lab.KeepAPI(ctx, from, to, heldToAPI); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	cut := time.Now()
	if err := l.Control.UnplugServer(ctx, 1, true); err != nil {
		t.Fatal(err)
	}
	for what, p := range procs {
		if err := p.WaitLine(ctx, "closed 1", time.Until(cut.Add(closedWithin))); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	// What is left of the dead one goes in the same sweep; the new server in the table is asked once more.
	waitStatus(ctx, t, n, 10*time.Second, func(s telemetry.Status) error {
		if both(s) == nil {
			return fmt.Errorf("a server without power counts as one that answers: %+v", s.Services.APIServers)
		}
		return nil
	})
	for what, p := range procs {
		judgeAPI(ctx, t, what, p, cut)
	}
	noLeaks(t, l)
}

// judgeAPI ends who held connections and looks at when they ended, and when new ones were of no use.
func judgeAPI(ctx context.Context, t *testing.T, what string, p *lab.Process, cut time.Time) {
	t.Helper()
	var r lab.KeptAPI
	if err := p.Result(ctx, &r); err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	if r.Opened != heldToAPI || len(r.Closed) == 0 || len(r.Closed) == r.Opened {
		t.Errorf("%s: %d of %d held connections were closed, want those to one of two servers", what, len(r.Closed), r.Opened)
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
	if r.Asked < 100 {
		t.Errorf("%s: only %d new connections", what, r.Asked)
	}
	t.Logf("%s: %d of %d closed, the last after %v; of %d new ones %d of no use, the last began after %v",
		what, len(r.Closed), r.Opened, lastClosed, r.Asked, len(r.Failed), lastFailed)
}
