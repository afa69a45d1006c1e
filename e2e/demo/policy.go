package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/demo/capture"
	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/internal/netns"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables"
	"github.com/kubeveil/kubeveil/pkg/telemetry/admin"
)

// namespace is the Kubernetes namespace of the pods if there is an API server.
const namespace = "demo"

// isolated has three pods of Kubeveil's network. A NetworkPolicy allows only allowed to reach
// server, and not forbidden. allowed and forbidden are on the same node, so that their packets take
// the same path.
type isolated struct{ server, allowed, forbidden *lab.Pod }

// policy makes a forbidden pod send to an isolated pod, first while veild runs on the receiver's
// node, then after veild was killed. It does nothing without an API server.
func (d *demo) policy(ctx context.Context) error {
	if !d.api {
		return nil
	}
	pods, err := d.isolate(ctx)
	if err != nil {
		return err
	}

	if err := d.judged(ctx, pods,
		"A pod sends to a pod whose NetworkPolicy allows only a third pod"); err != nil {
		return err
	}
	node := pods.server.Node
	if err := node.Program("veild").Kill(ctx); err != nil {
		return err
	}
	err = d.judged(ctx, pods, "The same after veild of the receiver's node was killed")

	if _, startErr := node.StartProgram(ctx, "veild"); startErr != nil {
		return errors.Join(err, startErr)
	}
	return errors.Join(err, policyInForce(ctx, node))
}

// isolate makes the policy, then the pods, and waits until the server's node enforces the policy.
func (d *demo) isolate(ctx context.Context) (pods isolated, err error) {
	labeled := func(name string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
	}
	if _, err := d.ours.lab.Control.Client.NetworkingV1().NetworkPolicies(namespace).Create(ctx,
		&networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "server"},
			Spec: networkingv1.NetworkPolicySpec{PodSelector: *labeled("server"),
				Ingress: []networkingv1.NetworkPolicyIngressRule{{
					From: []networkingv1.NetworkPolicyPeer{{PodSelector: labeled("allowed")}}}}},
		}, metav1.CreateOptions{}); err != nil {
		return pods, fmt.Errorf("make a network policy: %w", err)
	}

	first, second := d.ours.lab.Nodes()[0], d.ours.lab.Nodes()[1]
	for _, p := range []struct {
		name string
		node *lab.Node
		pod  **lab.Pod
	}{{"server", second, &pods.server}, {"allowed", first, &pods.allowed},
		{"forbidden", first, &pods.forbidden}} {
		if *p.pod, err = p.node.RunPod(ctx, namespace, p.name,
			map[string]string{"app": p.name}); err != nil {
			return pods, err
		}
	}
	if _, err := traffic.Echo(ctx, pods.server); err != nil {
		return pods, err
	}
	return pods, policyInForce(ctx, second)
}

// policyInForce waits until a node's veild enforces the policy for every pod of the node.
func policyInForce(ctx context.Context, node *lab.Node) error {
	err := lab.Until(ctx, 20*time.Second, func() error {
		s, err := admin.Fetch(ctx, node.Path(abi.AdminSocket))
		if err != nil {
			return err
		}
		if p := s.Policy; len(s.Devices) == 0 || p == nil || !p.Listed || p.Policies == 0 ||
			p.Pending > 0 {
			return fmt.Errorf("policy %+v, problems %q", p, s.Problems)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("wait until %s enforces the policy: %w", node.Name, err)
	}
	return nil
}

// verdict is the result of an attempt, measured at the receiver and its node.
type verdict struct {
	// forbidden and allowed count the packets of the two pods that arrived on the receiver's link.
	// connected counts the TCP connections that the forbidden pod opened.
	forbidden, allowed, connected int
	// dropped is the increase of the counter policy_ingress on the receiver's node.
	dropped uint64
	// answered counts the answered messages of the allowed pod. err is the error that ended its
	// messages, or nil.
	answered int
	err      error
}

// refusal returns the report's row of an attempt. The row is OK only if packets were dropped and
// the allowed pod was answered, because otherwise the attempt proves nothing.
func (v verdict) refusal(what string) report.Refusal {
	r := report.Refusal{What: what, Want: "dropped by the receiver's node; the third pod is answered",
		Got: fmt.Sprintf("%d packets arrived, policy_ingress +%d; %d messages of the third pod answered",
			v.forbidden, v.dropped, v.answered)}
	switch {
	case v.connected > 0:
		r.Got = fmt.Sprintf("%d connections are open; %s", v.connected, r.Got)
	case v.err != nil:
		r.Got = fmt.Sprintf("%s; then: %v", r.Got, v.err)
	default:
		r.OK = v.forbidden == 0 && v.dropped > 0 && v.allowed > 0 && v.answered > 0
	}
	return r
}

// judged makes the forbidden pod and then the allowed pod send to the server, and counts packets on
// the server's link. The allowed pod's packets take the same path later. So once they are answered,
// no packet of the forbidden pod is still under way.
func (d *demo) judged(ctx context.Context, pods isolated, what string) error {
	node := pods.server.Node
	before, err := ingressDrops(node)
	if err != nil {
		return err
	}
	of := func(pod *lab.Pod) func([]byte) bool {
		return func(frame []byte) bool {
			p, ok := capture.Parse(frame)
			return ok && slices.Contains(pod.Addrs, p.Src)
		}
	}
	forbidden, allowed := of(pods.forbidden), of(pods.allowed)
	s, err := capture.Start(pods.server.NetNS(), "eth0",
		func(frame []byte) bool { return forbidden(frame) || allowed(frame) }, countedFrames)
	if err != nil {
		return err
	}

	var v verdict
	v.connected, err = d.knock(pods.forbidden, pods.server.Addrs)
	if err == nil {
		v.answered, v.err = d.messagesTo(ctx, pods.allowed, pods.server.Addrs)
	}
	for _, frame := range s.Close() {
		if forbidden(frame.Data) {
			v.forbidden++
		} else {
			v.allowed++
		}
	}
	if err != nil {
		return err
	}
	after, err := ingressDrops(node)
	if err != nil {
		return err
	}

	v.dropped = after - before
	d.note(v.refusal(what))
	return ctx.Err()
}

const (
	// countedFrames is the maximum number of frames that are kept per attempt.
	countedFrames = 1 << 12
	// knocks is the number of datagrams to each address.
	knocks = 10
	// connecting is the time limit of a TCP connection attempt. It may be short, because the SYN
	// leaves at once.
	connecting = 300 * time.Millisecond
)

// knock sends datagrams to each address, then tries to open a TCP connection to each. It returns
// the number of open connections, and an error if a datagram could not be sent.
func (d *demo) knock(from *lab.Pod, to []netip.Addr) (connected int, err error) {
	payload := []byte(d.ours.lab.Canary)
	for _, addr := range to {
		for range knocks {
			if err := send(from.NetNS(), netip.AddrPort{}, netip.AddrPortFrom(addr,
				traffic.EchoPort), payload); err != nil {
				return 0, fmt.Errorf("%s to %s: %w", from.ID, addr, err)
			}
		}
	}
	for _, addr := range to {
		_ = netns.Do(from.NetNS(), func() error {
			c, err := net.DialTimeout("tcp", netip.AddrPortFrom(addr, traffic.EchoPort).String(),
				connecting)
			if err != nil {
				return err
			}
			connected++
			return c.Close()
		})
	}
	return connected, nil
}

// ingressDrops returns the number of packets that a node's kernel dropped because no policy of
// their destination allows them. It does not need veild.
func ingressDrops(n *lab.Node) (count uint64, err error) {
	err = n.Do(func() error {
		drops, err := nftables.Drops()
		count = drops["policy_ingress"]
		return err
	})
	return count, err
}
