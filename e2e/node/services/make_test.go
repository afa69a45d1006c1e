package services_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/labhost"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// bothProtocols are the protocols of each service that publish makes.
var bothProtocols = []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP}

// servicePort is the port of services that publish makes, at their own addresses.
const servicePort = 80

// namedPods makes pods that answer with their names, the first on the first node and all others on
// the second, and one client, on the first.
func namedPods(ctx context.Context, t *testing.T, l *lab.Lab, ports int,
	names ...string) (client *lab.Pod, backends []*lab.Pod) {
	t.Helper()
	client = nodetest.AddPod(ctx, t, l.Nodes()[0], "client")
	for i, name := range names {
		p, err := l.Nodes()[min(i, 1)].AddPod(ctx, name, lab.PodOptions{})
		errtest.Must(t, err)
		errtest.Must(t, errtest.Of(traffic.Named(ctx, p, name, ports)))
		backends = append(backends, p)
	}
	// A pod of one node reaches a pod of the other, so the nodes have each other's keys.
	for _, to := range backends[len(backends)-1].Addrs {
		answers(ctx, t, client, traffic.Question{To: netip.AddrPortFrom(to, traffic.NamePort),
			Count: 1, Timeout: time.Second}, everyone(names[len(names)-1]))
	}
	return client, backends
}

// publish makes a service of both protocols and all families; spec has its particular fields.
func publish(ctx context.Context, t *testing.T, l *lab.Lab, name string, spec corev1.ServiceSpec,
	backends ...*lab.Pod) *corev1.Service {
	t.Helper()
	both := corev1.IPFamilyPolicyPreferDualStack
	spec.IPFamilyPolicy = &both
	for _, p := range bothProtocols {
		spec.Ports = append(spec.Ports, corev1.ServicePort{Name: strings.ToLower(string(p)),
			Protocol: p, Port: servicePort, TargetPort: intstr.FromInt32(traffic.NamePort)})
	}
	s, err := l.Control.Client.CoreV1().Services("default").Create(ctx,
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec},
		metav1.CreateOptions{})
	errtest.Must(t, err)
	putBackends(ctx, t, l, name, ready(backends...), 1)
	return s
}

// balance assigns a service addresses of a load balancer and routes clients outside to these
// addresses by a node.
func balance(ctx context.Context, t *testing.T, l *lab.Lab, s *corev1.Service, via *lab.Node,
	addrs ...netip.Addr) {
	t.Helper()
	routeVia(ctx, t, l, via, addrs...)
	assign(ctx, t, l, s, addrs...)
}

// routeVia routes addresses by a node, for clients outside.
func routeVia(ctx context.Context, t *testing.T, l *lab.Lab, via *lab.Node, addrs ...netip.Addr) {
	t.Helper()
	for _, a := range addrs {
		errtest.Must(t, l.Outside.IP(ctx, fmt.Sprintf("route replace %s via %s", a,
			nodeAddr(via, a.Is6()))))
	}
}

// assign assigns a service addresses of a load balancer, as a controller of a cloud does.
func assign(ctx context.Context, t *testing.T, l *lab.Lab, s *corev1.Service, addrs ...netip.Addr) {
	t.Helper()
	s.Status.LoadBalancer.Ingress = nil
	for _, a := range addrs {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress,
			corev1.LoadBalancerIngress{IP: a.String()})
	}
	if _, err := l.Control.Client.CoreV1().Services("default").UpdateStatus(ctx, s,
		metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// endpoint is a pod with the state of its endpoint.
type endpoint struct {
	pod                         *lab.Pod
	ready, serving, terminating bool
}

func ready(pods ...*lab.Pod) (out []endpoint) {
	for _, p := range pods {
		out = append(out, endpoint{p, true, true, false})
	}
	return out
}

// putBackends sets the EndpointSlices of a service, like the endpoint controller: one for each
// family and each of that many ports.
func putBackends(ctx context.Context, t *testing.T, l *lab.Lab, service string, backends []endpoint,
	ports int) {
	t.Helper()
	for port := range ports {
		for _, six := range []bool{false, true} {
			errtest.Must(t, putEndpoints(ctx, l, sliceOf(service, backends, six,
				int32(traffic.NamePort+port))))
		}
	}
}

func sliceOf(service string, backends []endpoint, six bool, port int32) *discoveryv1.EndpointSlice {
	kind := discoveryv1.AddressTypeIPv4
	if six {
		kind = discoveryv1.AddressTypeIPv6
	}
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name:   fmt.Sprintf("%s-%s-%d", service, strings.ToLower(string(kind)), port),
			Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: kind,
	}
	for _, p := range bothProtocols {
		name := strings.ToLower(string(p))
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &name, Protocol: &p, Port: &port})
	}
	for _, b := range backends {
		node, conditions := b.pod.Node.Name, discoveryv1.EndpointConditions{Ready: &b.ready,
			Serving: &b.serving, Terminating: &b.terminating}
		s.Endpoints = append(s.Endpoints,
			discoveryv1.Endpoint{Addresses: []string{b.pod.Addr(six).String()}, NodeName: &node,
				Conditions: conditions})
	}
	return s
}

// putEndpoints creates a slice, or replaces the slice of the same name.
func putEndpoints(ctx context.Context, l *lab.Lab, s *discoveryv1.EndpointSlice) error {
	client := l.Control.Client.DiscoveryV1().EndpointSlices("default")
	_, err := client.Create(ctx, s, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = client.Update(ctx, s, metav1.UpdateOptions{})
	}
	return err
}

// clusterIP returns a service's own address of a family with its port.
func clusterIP(t *testing.T, s *corev1.Service, six bool) netip.AddrPort {
	t.Helper()
	for _, text := range s.Spec.ClusterIPs {
		if a, err := netip.ParseAddr(text); err == nil && a.Is6() == six {
			return netip.AddrPortFrom(a, servicePort)
		}
	}
	t.Fatalf("service %s has the addresses %v", s.Name, s.Spec.ClusterIPs)
	return netip.AddrPort{}
}

// nodePort returns the address of a service on a node.
func nodePort(t *testing.T, s *corev1.Service, n *lab.Node, proto string, six bool) netip.AddrPort {
	t.Helper()
	for _, p := range s.Spec.Ports {
		if p.Name == proto && p.NodePort > 0 {
			return netip.AddrPortFrom(nodeAddr(n, six), uint16(p.NodePort))
		}
	}
	t.Fatalf("service %s has no port on nodes for %s", s.Name, proto)
	return netip.AddrPort{}
}

func nodeAddr(n *lab.Node, six bool) netip.Addr {
	for _, a := range n.Addrs {
		if a.Is6() == six {
			return a
		}
	}
	return netip.Addr{}
}

// answers takes a census until wanted accepts it, for 20 s at most, or more on a busy machine. It
// returns the last one.
func answers(ctx context.Context, t *testing.T, from traffic.Place, q traffic.Question,
	wanted func(traffic.Census) error) traffic.Census {
	t.Helper()
	var c traffic.Census
	err := lab.Until(ctx, labhost.Slow(20*time.Second), func() (err error) {
		if c, err = traffic.TakeCensus(ctx, from, q); err != nil {
			return lab.Stop(err)
		}
		return wanted(c)
	})
	if err != nil {
		t.Errorf("%s to %s: %v: %+v", q.Proto, q.To, err, c)
	}
	return c
}

// spread returns a check that all requests were answered by these servers, and by each about
// equally often. A fair choice differs by five standard deviations once in two million times.
func spread(names ...string) func(traffic.Census) error {
	return func(c traffic.Census) error {
		if err := everyone(names...)(c); err != nil {
			return err
		}
		n, p := 0.0, 1/float64(len(names))
		for _, k := range c.Names {
			n += float64(k)
		}
		off := 5 * math.Sqrt(n*p*(1-p))
		for name, k := range c.Names {
			if math.Abs(float64(k)-n*p) > off {
				return fmt.Errorf("%d of %.0f answers from %s, want %.0f and no more than %.0f off",
					k, n, name, n*p, off)
			}
		}
		return nil
	}
}

// everyone returns a check that all requests were answered by exactly these servers.
func everyone(names ...string) func(traffic.Census) error {
	return func(c traffic.Census) error {
		if c.Failed > 0 {
			return fmt.Errorf("%d without an answer, the first: %s", c.Failed, c.Error)
		}
		got := slices.Sorted(maps.Keys(c.Names))
		if want := slices.Sorted(slices.Values(names)); !slices.Equal(got, want) {
			return fmt.Errorf("answers from %v, want %v", got, want)
		}
		return nil
	}
}

// one checks that a single server answered all requests.
func one(c traffic.Census) error {
	if c.Failed > 0 || len(c.Names) != 1 {
		return fmt.Errorf("answers from %v, %d without, want one server", c.Names, c.Failed)
	}
	return nil
}

// refusedAtOnce checks that all requests were refused directly.
func refusedAtOnce(c traffic.Census) error {
	switch {
	case c.Refused == 0 || c.Refused != c.Failed || len(c.Names) > 0:
		return fmt.Errorf("%d refused, %d failed: %s", c.Refused, c.Failed, c.Error)
	case c.SlowestMillis > float64(labhost.Slow(250*time.Millisecond).Milliseconds()):
		return fmt.Errorf("refused after %.0f ms", c.SlowestMillis)
	}
	return nil
}

// noAnswer checks that no request was answered or refused, as if the packets were dropped.
func noAnswer(c traffic.Census) error {
	if len(c.Names) > 0 || c.Refused > 0 {
		return errors.New("it was answered or refused")
	}
	return nil
}
