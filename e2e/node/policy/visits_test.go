package policy_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	typednetworkingv1 "k8s.io/client-go/kubernetes/typed/networking/v1"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/netns"
)

const portForbidden, portAllowed = 7100, 7101

// arrival is a received packet of a visitor. Number 0 means the control.
type arrival struct {
	port, visitor int
	six           bool
}

// visits holds the visitors, and three permanent pods of the first node: the receivers open and
// server, and a friend. Policies restrict what the server receives and what visitors send:
//
//	visitor ─ may send to the allowed port ──► open
//	guest ─────────── which it may receive at ► server
//	friend ─────────────── also the forbidden ► server, open
type visits struct {
	l                    *lab.Lab
	server, open, friend *lab.Pod
	numbers, rounds      int

	mu  sync.Mutex
	got map[arrival]int
}

func newVisits(ctx context.Context, t *testing.T, l *lab.Lab) *visits {
	t.Helper()
	w := &visits{l: l, got: map[arrival]int{}}
	errtest.Must(t, w.changePolicies(ctx))
	n1 := l.Nodes()[0]
	w.server, w.open = nodetest.StartPod(ctx, t, n1, "server"), nodetest.StartPod(ctx, t, n1, "open")
	w.friend = nodetest.StartPod(ctx, t, n1, "friend")
	for _, p := range []*lab.Pod{w.server, w.open} {
		for _, port := range []int{portForbidden, portAllowed} {
			for _, six := range []bool{false, true} {
				w.receive(t, p, port, six)
			}
		}
	}
	nodetest.WaitMembers(ctx, t, n1, 3)
	return w
}

// changePolicies sets the policies of the visitors and of the server. All versions allow the
// allowed port, and the forbidden one to the friend alone. Half of them have another policy for
// each, which allows nothing.
func (w *visits) changePolicies(ctx context.Context) error {
	policies := w.l.Control.Client.NetworkingV1().NetworkPolicies(nodetest.Shop)
	udp := corev1.ProtocolUDP
	ports := func(n int) []networkingv1.NetworkPolicyPort {
		port := intstr.FromInt(n)
		return []networkingv1.NetworkPolicyPort{{Protocol: &udp, Port: &port}}
	}
	pods := func(key, value string) []networkingv1.NetworkPolicyPeer {
		return []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{
			MatchLabels: map[string]string{key: value}}}}
	}
	round := fmt.Sprint(w.rounds)
	visitor := networkingv1.NetworkPolicySpec{
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
		Egress: []networkingv1.NetworkPolicyEgressRule{{Ports: ports(portAllowed)},
			{To: pods("round", round)}}}
	server := networkingv1.NetworkPolicySpec{
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
		Ingress: []networkingv1.NetworkPolicyIngressRule{{Ports: ports(portAllowed)},
			{From: pods("app", "friend"), Ports: ports(portForbidden)},
			{From: pods("round", round)}}}

	var errs []error
	for app, spec := range map[string]networkingv1.NetworkPolicySpec{"visitor": visitor,
		"server": server} {
		spec.PodSelector.MatchLabels = map[string]string{"app": app}
		p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: app}, Spec: spec}
		errs = append(errs, putPolicy(ctx, policies, p))

		p.Name, p.Spec.Ingress, p.Spec.Egress = app+"-more", nil, nil
		if w.rounds%2 == 0 {
			errs = append(errs, putPolicy(ctx, policies, p))
		} else {
			errs = append(errs, policies.Delete(ctx, p.Name, metav1.DeleteOptions{}))
		}
	}
	w.rounds++
	return errors.Join(errs...)
}

type networkPolicies = typednetworkingv1.NetworkPolicyInterface

// putPolicy creates a policy, or replaces the one of its name.
func putPolicy(ctx context.Context, policies networkPolicies, p *networkingv1.NetworkPolicy) error {
	_, err := policies.Update(ctx, p, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = policies.Create(ctx, p, metav1.CreateOptions{})
	}
	return err
}

// changePause is the time between two changes of policies.
const changePause = 50 * time.Millisecond

// churn changes policies until stop is called. stop returns the number of changes.
func (w *visits) churn(ctx context.Context, t *testing.T) (stop func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	first := w.rounds
	go func() {
		defer close(ended)
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(changePause):
			}
			if err := w.changePolicies(context.WithoutCancel(ctx)); err != nil {
				t.Errorf("change policies: %v", err)
				return
			}
		}
	}()
	stop = func() int { cancel(); <-ended; return w.rounds - first }
	t.Cleanup(func() { stop() })
	return stop
}

// receive records the packets that a pod receives at a port, until the test ends.
func (w *visits) receive(t *testing.T, p *lab.Pod, port int, six bool) {
	t.Helper()
	c, err := listen(p, port, six)
	errtest.Must(t, err)
	ended := make(chan struct{})
	t.Cleanup(func() { c.Close(); <-ended })
	go func() {
		defer close(ended)
		b := make([]byte, 256)
		for {
			n, err := c.Read(b)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil && n >= 4 {
				w.mu.Lock()
				w.got[arrival{port, int(binary.BigEndian.Uint32(b)), six}]++
				w.mu.Unlock()
			}
		}
	}()
}

// listen opens a UDP socket in a pod, at any port if port is 0.
func listen(p *lab.Pod, port int, six bool) (c *net.UDPConn, err error) {
	network := "udp4"
	if six {
		network = "udp6"
	}
	err = netns.Do(p.NetNS(), func() (err error) {
		c, err = net.ListenUDP(network, &net.UDPAddr{Port: port})
		return err
	})
	return c, err
}

// received counts the families of which a visitor's packets were received at a port.
func (w *visits) received(number, port int) (families int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, six := range []bool{false, true} {
		families += min(1, w.got[arrival{port, number, six}])
	}
	return families
}

// forget deletes the records of a visitor.
func (w *visits) forget(number int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.got, func(a arrival, _ int) bool { return a.visitor == number })
}

// noneForbidden checks that no visitor's forbidden packet was received.
func (w *visits) noneForbidden(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for a, n := range w.got {
		if a.port == portForbidden && a.visitor > 0 {
			t.Errorf("%d forbidden packets were received: %+v", n, a)
		}
	}
}

// control checks that the receivers receive at the forbidden port what policies allow there, by a
// new socket.
func (w *visits) control(t *testing.T) {
	t.Helper()
	for _, to := range []*lab.Pod{w.server, w.open} {
		w.forget(0)
		s, err := newSender(w.friend, 0, to)
		errtest.Must(t, err)
		errtest.Must(t, w.until(s, portForbidden))
		s.close()
	}
}

// until sends to a port until packets of both families were received.
func (w *visits) until(s *sender, port int) error {
	return lab.Until(context.Background(), patience, func() error {
		for i := range s.conns {
			_ = s.send(i, port) // again, until it is received
		}
		if n := w.received(s.number, port); n < len(s.conns) {
			return fmt.Errorf("visitor %d: %d families were received at port %d", s.number, n, port)
		}
		return nil
	})
}
