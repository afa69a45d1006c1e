package policy_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// tryAgainLater is the code of CNI for an ADD on a node that is not ready for pods.
const tryAgainLater = 11

// TestRebootOpensNothing reboots a node, which loses its tables and all records of its pods. No pod
// is attached before veild has all policies. Policies apply to the pods from their first packet on,
// in both directions.
func TestRebootOpensNothing(t *testing.T) {
	ctx, l := policyLab(t)
	w := newVisits(ctx, t, l)
	n2 := l.Nodes()[1]
	back := w.serverOf(ctx, t, n2)
	list := w.bindTo(ctx, t, n2, 6)
	w.waitReserved(ctx, t, list)
	w.each(t, list, func(v *visitor) error {
		p, err := n2.AddPod(ctx, v.object.Name, lab.PodOptions{Object: v.object})
		if err != nil {
			return err
		}
		return p.WriteStatus(ctx, v.object)
	})
	w.control(t)

	errtest.Must(t, errors.Join(n2.Crash(), n2.Boot(ctx, false)))
	for _, name := range []string{abi.NFTPolicyTable, abi.NFTStampTable, abi.NFTPodTable} {
		if tables := nodetest.Run(ctx, t, n2, "nft", "list tables"); strings.Contains(tables, name) {
			t.Fatalf("a table outlives the reboot, so the test shows nothing: %s", tables)
		}
	}
	w.refused(ctx, t, "nothing runs", list)
	nodetest.StartProgram(ctx, t, n2, "veil-wg")
	w.refused(ctx, t, "only the worker runs", list)

	errtest.Must(t, l.Control.RefuseNodes(ctx, true))
	nodetest.StartProgram(ctx, t, n2, "veild")
	nodetest.WaitStatus(ctx, t, n2, 20*time.Second, func(s telemetry.Status) error {
		if s.Policy == nil || s.Policy.Listed {
			t.Fatalf("policy %+v, want none listed while the API server is away", s.Policy)
		}
		return nil
	})
	w.refused(ctx, t, "veild runs and knows no policy", list)
	errtest.Must(t, l.Control.RefuseNodes(ctx, false))

	back.again(ctx, t)
	w.each(t, list, func(v *visitor) error {
		return inTurn(func() error { return w.attach(ctx, v) },
			func() error { return v.pod.WriteStatus(ctx, v.object) },
			func() error { return w.allowed(v) }, func() error { return v.leave(ctx) })
	})
	w.wantEarly(t, list)
	w.noneForbidden(t)
	back.judged(t)
	nodetest.NoLeaks(t, l)
}

// refused checks that ADD of pods that send forbidden packets is refused, and that none is
// received.
func (w *visits) refused(ctx context.Context, t *testing.T, when string, list []*visitor) {
	t.Helper()
	w.each(t, list, func(v *visitor) error {
		begin := func(p *lab.Pod) (err error) {
			if v.sender, err = newSender(p, v.number, v.to); err == nil {
				v.sender.insist()
			}
			return err
		}
		p, err := v.node.AddPod(ctx, v.object.Name, lab.PodOptions{Object: v.object, Begin: begin})
		var refused *lab.CNIError
		if !errors.As(err, &refused) || refused.Code != tryAgainLater {
			t.Errorf("%s: ADD: %v, want code %d", when, err, tryAgainLater)
		}
		if v.sender != nil {
			v.sender.close()
		}
		if p != nil {
			return p.Del(ctx)
		}
		return nil
	})

	if links := nodetest.Run(ctx, t, list[0].node, "ip", "-br", "link", "show", "type",
		"veth"); strings.Contains(links, "vpod") {
		t.Errorf("%s: links of pods: %s", when, links)
	}
	w.noneForbidden(t)
}

// comer is a server that is attached again after the reboot of its node. A pod of another node
// sends forbidden packets to its address all the time.
type comer struct {
	w        *visits
	node     *lab.Node
	object   *corev1.Pod
	pod      *lab.Pod
	stranger *sender
}

// serverOf starts a server on a node, as the node's first pod.
func (w *visits) serverOf(ctx context.Context, t *testing.T, n *lab.Node) *comer {
	t.Helper()
	c := &comer{w: w, node: n}
	var err error
	c.object, err = n.BindPod(ctx, nodetest.Shop, nodetest.PodName("server"),
		map[string]string{"app": "server"})
	errtest.Must(t, err)
	errtest.Must(t, n.WaitReserved(ctx, c.object))
	c.add(ctx, t)

	w.numbers++
	guest := nodetest.StartPod(ctx, t, w.l.Nodes()[0], "guest")
	c.stranger, err = newSender(guest, w.numbers, c.pod)
	errtest.Must(t, err)
	t.Cleanup(c.stranger.close)
	c.stranger.insist() // It has no end, since no ADD returns.
	c.judged(t)
	return c
}

// add attaches the server, which receives from its first moment.
func (c *comer) add(ctx context.Context, t *testing.T) {
	t.Helper()
	begin := func(p *lab.Pod) error {
		for _, port := range []int{portForbidden, portAllowed} {
			for _, six := range []bool{false, true} {
				c.w.receive(t, p, port, six)
			}
		}
		return nil
	}
	err := lab.Until(ctx, patience, func() (err error) {
		c.pod, err = c.node.AddPod(ctx, c.object.Name, lab.PodOptions{Object: c.object, Begin: begin})
		return err
	})
	errtest.Must(t, err)
	errtest.Must(t, c.pod.WriteStatus(ctx, c.object))
}

// again attaches the server again, with the address to which the stranger sends.
func (c *comer) again(ctx context.Context, t *testing.T) {
	t.Helper()
	before := c.pod.Addrs
	c.add(ctx, t)
	for i, a := range c.pod.Addrs {
		if a != before[i] {
			t.Fatalf("the server has %v after %v, so the test shows nothing", c.pod.Addrs, before)
		}
	}
}

// judged checks that the server receives from the friend at the forbidden port, and from the
// stranger at the allowed one only.
func (c *comer) judged(t *testing.T) {
	t.Helper()
	c.w.forget(0)
	friend, err := newSender(c.w.friend, 0, c.pod)
	errtest.Must(t, err)
	defer friend.close()
	errtest.Must(t, c.w.until(friend, portForbidden))
	c.w.forget(c.stranger.number)
	errtest.Must(t, c.w.until(c.stranger, portAllowed))
	c.w.noneForbidden(t)
}
