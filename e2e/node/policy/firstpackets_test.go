package policy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// TestFirstPacketsOfPods adds pods that send a forbidden packet first. No forbidden packet is
// received, and the allowed packets of the same pods are received. This holds in each state of the
// node: while policies change, while no veild runs, while the API server is down, and after a
// reboot.
func TestFirstPacketsOfPods(t *testing.T) {
	rounds, pods := 1, 20
	opts := lab.Options{Family: lab.Dual, VeildConfig: map[string]any{"policy": "kubernetes"}}
	var ctx context.Context
	var l *lab.Lab
	if !nettest.Long() {
		ctx, l = nodetest.NewLab(t, opts)
	} else {
		// More pods at once would need more addresses than a node has.
		rounds, pods = 5, 200
		t.Parallel()
		ctx, l = nodetest.LongLab(t, opts, 30*time.Minute)
	}

	errtest.Must(t, l.Control.AddNamespace(ctx, nodetest.Shop))
	w := newVisits(ctx, t, l)
	for _, series := range []struct {
		name string
		run  func(context.Context, *testing.T, int)
	}{
		{"policies change", w.whilePoliciesChange},
		{"veild is dead", w.whileVeildIsDead},
		{"the API server is away", w.whileTheAPIServerIsAway},
		{"the node was rebooted", w.afterAReboot},
	} {
		t.Run(series.name, func(t *testing.T) {
			began := time.Now()
			for range rounds {
				w.control(t)
				series.run(ctx, t, pods)
				w.forgetPods(ctx, t)
			}
			w.noneForbidden(t)
			t.Logf("%d pods in %v", rounds*pods, time.Since(began).Round(time.Millisecond))
		})
	}
	nodetest.NoLeaks(t, l)
}

// whilePoliciesChange attaches half of the pods without waiting for a reservation.
func (w *visits) whilePoliciesChange(ctx context.Context, t *testing.T, pods int) {
	stop := w.churn(ctx, t)
	list := w.bind(ctx, t, pods)
	w.each(t, list, func(v *visitor) error {
		if v.number%4 < 2 {
			_ = v.node.WaitReserved(ctx, v.object)
		}
		return inTurn(func() error { return w.attach(ctx, v) },
			func() error { return v.pod.WriteStatus(ctx, v.object) },
			func() error { return w.allowed(v) }, func() error { return v.leave(ctx) })
	})
	if n := stop(); n < pods/2 {
		t.Errorf("policies changed %d times while %d pods were added", n, pods)
	}
	w.wantEarly(t, list)
}

// whileVeildIsDead attaches pods that were bound before it died, and some that were bound after it.
// The latter have no reservation and are mute until veild is back.
func (w *visits) whileVeildIsDead(ctx context.Context, t *testing.T, pods int) {
	list := w.bind(ctx, t, pods)
	w.waitReserved(ctx, t, list)
	for _, n := range w.l.Nodes() {
		nodetest.KillProgram(ctx, t, n, "veild")
	}
	stop := w.churn(ctx, t)
	w.each(t, list, func(v *visitor) error {
		return inTurn(func() error { return w.attach(ctx, v) },
			func() error { return w.allowed(v) }, func() error { return v.leave(ctx) })
	})
	w.wantEarly(t, list)

	mute := w.bind(ctx, t, max(4, pods/10))
	before := w.pending(ctx, t)
	w.each(t, mute, func(v *visitor) error {
		return inTurn(func() error { return w.attach(ctx, v) },
			func() error { return v.sender.sendAllowed() },
			func() error { return v.sender.sendAllowed() })
	})
	if n := w.pending(ctx, t) - before; n < len(mute)*2 {
		t.Errorf("%d packets of %d pods without a reservation are counted as pending", n, len(mute))
	}
	for _, v := range mute {
		if w.received(v.number, portAllowed) > 0 {
			t.Errorf("pod %d has no reservation, and its packets were received", v.number)
		}
	}

	for _, n := range w.l.Nodes() {
		nodetest.StartProgram(ctx, t, n, "veild")
		nodetest.WaitReady(ctx, t, n)
	}
	w.each(t, mute, func(v *visitor) error {
		return inTurn(func() error { return w.allowed(v) }, func() error { return v.leave(ctx) })
	})
	stop()
}

// whileTheAPIServerIsAway attaches pods that were bound before the API server was stopped.
func (w *visits) whileTheAPIServerIsAway(ctx context.Context, t *testing.T, pods int) {
	list := w.bind(ctx, t, pods)
	w.waitReserved(ctx, t, list)
	errtest.Must(t, w.l.Control.RefuseNodes(ctx, true))
	w.each(t, list, func(v *visitor) error {
		return inTurn(func() error { return w.attach(ctx, v) },
			func() error { return w.allowed(v) }, func() error { return v.leave(ctx) })
	})
	errtest.Must(t, w.l.Control.RefuseNodes(ctx, false))
	w.wantEarly(t, list)
}

// afterAReboot attaches all pods of a node again, like a kubelet. From the boot on, it calls ADD
// for each pod until ADD succeeds.
func (w *visits) afterAReboot(ctx context.Context, t *testing.T, pods int) {
	n2 := w.l.Nodes()[1]
	list := w.bindTo(ctx, t, n2, pods)
	w.waitReserved(ctx, t, list)
	w.each(t, list, func(v *visitor) error {
		p, err := n2.AddPod(ctx, v.object.Name, lab.PodOptions{Object: v.object})
		if err != nil {
			return err
		}
		return p.WriteStatus(ctx, v.object)
	})

	stop := w.churn(ctx, t)
	errtest.Must(t, n2.Reboot(ctx))
	w.each(t, list, func(v *visitor) error {
		return inTurn(func() error { return w.attach(ctx, v) },
			func() error { return v.pod.WriteStatus(ctx, v.object) },
			func() error { return w.allowed(v) }, func() error { return v.leave(ctx) })
	})
	stop()
	w.wantEarly(t, list)
}

// inTurn calls functions until one of them fails.
func inTurn(functions ...func() error) error {
	for _, f := range functions {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// waitReserved waits until pods have reservations and their nodes enforce all policies.
func (w *visits) waitReserved(ctx context.Context, t *testing.T, list []*visitor) {
	t.Helper()
	w.each(t, list, func(v *visitor) error {
		// veild retries with pauses after it lost the API server.
		return lab.Until(ctx, 30*time.Second,
			func() error { return v.node.WaitReserved(ctx, v.object) })
	})
	for _, n := range w.l.Nodes() {
		nodetest.WaitStatus(ctx, t, n, 20*time.Second, func(s telemetry.Status) error {
			if s.Policy == nil || !s.Policy.Listed || s.Policy.Told != s.Policy.Revision {
				return fmt.Errorf("policy %+v", s.Policy)
			}
			return nil
		})
	}
}

// pending returns the packets that the nodes' tables dropped because a pod had no verdict yet.
func (w *visits) pending(ctx context.Context, t *testing.T) (packets int) {
	t.Helper()
	for _, n := range w.l.Nodes() {
		var list struct {
			Nftables []struct{ Counter *struct{ Packets int } }
		}
		out := nodetest.Run(ctx, t, n, "nft", "-j", "list counter inet "+abi.NFTPolicyTable+
			" policy_pending")
		if err := json.Unmarshal([]byte(out), &list); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		for _, o := range list.Nftables {
			if o.Counter != nil {
				packets += o.Counter.Packets
			}
		}
	}
	return packets
}
