package nodetest

import (
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// Shop is the namespace of pods that policies select.
const Shop = "shop"

// AllowClients makes a policy that lets only the pods of an app reach the server.
func AllowClients(ctx context.Context, t *testing.T, l *lab.Lab, app string) {
	t.Helper()
	policies := l.Control.Client.NetworkingV1().NetworkPolicies(Shop)
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "server"},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "server"}},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{
				From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{
					MatchLabels: map[string]string{"app": app}}}}}},
		}}
	err := policies.Delete(ctx, p.Name, metav1.DeleteOptions{})
	if err == nil || app == "client" {
		_, err = policies.Create(ctx, p, metav1.CreateOptions{})
	}
	errtest.Must(t, err)
}

// podNumber is the number of the last pod. Parallel tests share it.
var podNumber atomic.Int64

// PodName returns a new, unique name for a pod of an app.
func PodName(app string) string { return fmt.Sprintf("%s-%d", app, podNumber.Add(1)) }

// StartPod makes a pod of an app in Shop, see lab.Node.RunPod.
func StartPod(ctx context.Context, t *testing.T, n *lab.Node, app string) *lab.Pod {
	t.Helper()
	p, err := n.RunPod(ctx, Shop, PodName(app), map[string]string{"app": app})
	errtest.Must(t, err)
	return p
}

// WaitMembers waits until policies decide the traffic of all count pods of a node.
func WaitMembers(ctx context.Context, t *testing.T, n *lab.Node, count int) {
	t.Helper()
	WaitStatus(ctx, t, n, 20*time.Second, func(s telemetry.Status) error {
		if s.Policy == nil || s.Policy.Members != count || s.Policy.Pending != 0 {
			return fmt.Errorf("policy %+v, problems %q", s.Policy, s.Problems)
		}
		return nil
	})
}

// Talks sends a message to the echo server of each address in to, and returns how many answered.
func Talks(ctx context.Context, from traffic.Place, to []netip.Addr) (reached int) {
	for _, a := range to {
		if _, err := traffic.Send(ctx, from, traffic.Exchange{Proto: "tcp", To: a, Count: 1,
			Size: 100, Timeout: 700 * time.Millisecond}); err == nil {
			reached++
		}
	}
	return reached
}

// allowedWithin bounds the time after which an allowed connection must work. When other labs end,
// they keep both CPUs in the kernel for seconds, so that the tunnel has to wait.
const allowedWithin = 30 * time.Second

// PolicyAllows checks that all addresses of a pod are reached, or none if want is false. A
// forbidden connection must fail directly after a change, so it is tried once. An allowed
// connection may time out on a busy machine, so it is tried again for allowedWithin.
func PolicyAllows(ctx context.Context, t *testing.T, when string, from traffic.Place, to *lab.Pod,
	want bool) {
	t.Helper()
	begin := time.Now()
	got := Talks(ctx, from, to.Addrs)
	for want && got < len(to.Addrs) && time.Since(begin) < allowedWithin {
		t.Logf("%s: %d of %d addresses of %s after %v", when, got, len(to.Addrs), to.Name,
			time.Since(begin).Round(time.Millisecond))
		got = Talks(ctx, from, to.Addrs)
	}
	if want && got != len(to.Addrs) || !want && got != 0 {
		t.Errorf("%s: %s reaches %d addresses of %s, want all: %t", when, from, got, to.Name, want)
	}
}

// StartTries makes each pod in from try to reach the pod to until NoneAnswered.
func StartTries(ctx context.Context, t *testing.T, to *lab.Pod,
	from ...*lab.Pod) (running []*lab.Process) {
	t.Helper()
	for _, p := range from {
		tries, err := traffic.Try(ctx, p, to.Addrs...)
		errtest.Must(t, err)
		running = append(running, tries)
	}
	return running
}

// NoneAnswered ends the tries of StartTries, and checks that no try was answered.
func NoneAnswered(ctx context.Context, t *testing.T, running []*lab.Process) {
	t.Helper()
	for _, p := range running {
		var all []traffic.Tried
		errtest.Must(t, p.Result(ctx, &all))
		if len(all) == 0 {
			t.Errorf("%s tried nothing", p.Name)
		}
		for _, tried := range all {
			if tried.Tried == 0 || tried.Answered > 0 {
				t.Errorf("%+v, want tries and no answer", tried)
			}
		}
	}
}

// PolicyBecomes waits until all addresses of to are reached, or none if want is false.
func PolicyBecomes(ctx context.Context, t *testing.T, from, to *lab.Pod, want bool) {
	t.Helper()
	err := lab.Until(ctx, 20*time.Second, func() error {
		if got := Talks(ctx, from, to.Addrs); want && got != len(to.Addrs) || !want && got != 0 {
			return fmt.Errorf("%s reaches %d addresses of %s, want all: %t", from.Name, got, to.Name,
				want)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
