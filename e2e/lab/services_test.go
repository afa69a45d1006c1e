package lab_test

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// serviceLab is a lab whose veilds translate services.
func serviceLab(t *testing.T) (context.Context, *lab.Lab) {
	t.Helper()
	return newLab(t, lab.Options{VeildConfig: map[string]any{
		"serviceProxy": "ebpf", "services": map[string]any{"limits": map[string]any{"slots": 1 << 16}},
	}})
}

// What services promise while nothing fails, over one lab: each part has services of its own.
func TestServices(t *testing.T) {
	ctx, l := serviceLab(t)
	t.Run("addresses", func(t *testing.T) { servicesByAddress(ctx, t, l) })
	client, pods := namedPods(ctx, t, l, 1, three...)
	var waits sync.WaitGroup // beside the others
	waits.Go(func() { t.Run("clients are forgotten", func(t *testing.T) { servicesForget(ctx, t, l, client, pods) }) })
	t.Run("clients are remembered", func(t *testing.T) { servicesRemember(ctx, t, l, client, pods) })
	t.Run("of nodes", func(t *testing.T) { servicesOfNodes(ctx, t, l, client, pods) })
	t.Run("policies", func(t *testing.T) { servicesOfPolicies(ctx, t, l, client, pods) })
	t.Run("backends that go", func(t *testing.T) { servicesMoveDatagrams(ctx, t, l, client, pods) })
	waits.Wait()
	noLeaks(t, l)
}

// servicesByAddress: pods reach a backend on the other node by the service's address, and what is translated stays in the tunnel.
func servicesByAddress(ctx context.Context, t *testing.T, l *lab.Lab) {
	pods := echoPods(ctx, t, l)
	front, other := pods[0], pods[1]
	meet(ctx, t, front, other)
	web := createService(ctx, t, l, "web", corev1.ProtocolTCP, other)

	t.Run("a pod to a backend on the other node", func(t *testing.T) {
		for _, addr := range web.Spec.ClusterIPs {
			reach(ctx, t, front, addr)
		}
	})
	t.Run("a process of the host", func(t *testing.T) {
		for _, addr := range web.Spec.ClusterIPs {
			reach(ctx, t, l.Nodes()[0], addr)
		}
	})
	t.Run("the API server by its service", func(t *testing.T) {
		s, err := l.Control.Client.CoreV1().Services("default").Get(ctx, "kubernetes", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		status := nodeStatus(ctx, t, l.Nodes()[0])
		if s := status.Services; s == nil || len(s.APIServers) != 1 || !s.APIServers[0].Up || !s.Listed {
			t.Errorf("status of services: %+v", s)
		}
		t.Logf("service %s has %v", s.Spec.ClusterIP, status.Services.APIServers)
	})
	t.Run("no endpoints", func(t *testing.T) {
		none := createService(ctx, t, l, "none", corev1.ProtocolTCP)
		waitStatus(ctx, t, l.Nodes()[0], 10*time.Second, func(s telemetry.Status) error {
			if s.Services.Known < 3 {
				return fmt.Errorf("%d services", s.Services.Known)
			}
			return nil
		})
		_, err := lab.Send(ctx, front, lab.Exchange{To: netip.MustParseAddr(none.Spec.ClusterIP), Port: 80, Count: 1})
		if err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("a connection: %v, want refused", err)
		}
		// By the socket, so at once: no packet was sent.
		refused := nodeStatus(ctx, t, l.Nodes()[0]).Services.Refused
		if !slices.Contains(refused, telemetry.ServiceCount{Where: "socket", What: "no_backend", Count: 1}) {
			t.Errorf("refused are %v", refused)
		}
	})
	t.Run("a port of the host, without kube-proxy", func(t *testing.T) { hostPort(ctx, t, l) })
}

// reach talks to port 80 of a service from a pod or a host, and tries until it answers.
func reach(ctx context.Context, t *testing.T, from lab.Place, addr string) {
	t.Helper()
	err := lab.Until(ctx, 10*time.Second, func() error {
		_, err := lab.Send(ctx, from, lab.Exchange{To: netip.MustParseAddr(addr), Port: 80, Count: 1, Timeout: 2 * time.Second})
		return err
	})
	if err != nil {
		t.Errorf("service %s: %v", addr, err)
	}
}

// createService makes a service of all families whose endpoints are pods on port 7000.
func createService(ctx context.Context, t *testing.T, l *lab.Lab, name string, protocol corev1.Protocol, pods ...*lab.Pod) *corev1.Service {
	t.Helper()
	both := corev1.IPFamilyPolicyPreferDualStack
	s, err := l.Control.Client.CoreV1().Services("default").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{IPFamilyPolicy: &both, Ports: []corev1.ServicePort{
			{Name: "echo", Protocol: protocol, Port: 80, TargetPort: intstr.FromInt32(7000)},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, six := range []bool{false, true} {
		putSlice(ctx, t, l, name, protocol, six, pods)
	}
	return s
}

// putSlice makes the EndpointSlice of a service for a family, as the endpoint controller would.
func putSlice(ctx context.Context, t *testing.T, l *lab.Lab, name string, protocol corev1.Protocol, six bool, pods []*lab.Pod) {
	t.Helper()
	port, portName, kind := int32(7000), "echo", discoveryv1.AddressTypeIPv4
	if six {
		kind = discoveryv1.AddressTypeIPv6
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: fmt.Sprintf("%s-%s", name, strings.ToLower(string(kind))), Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: kind, Ports: []discoveryv1.EndpointPort{{Name: &portName, Protocol: &protocol, Port: &port}},
	}
	for _, p := range pods {
		if a := p.Addr(six); a.IsValid() {
			ready, node := true, p.Node.Name
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{a.String()}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
			})
		}
	}
	if _, err := l.Control.Client.DiscoveryV1().EndpointSlices("default").Create(ctx, slice, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// The table outlives veild, and follows changes after it is back; the API server away changes nothing.
func TestServicesOutliveVeild(t *testing.T) {
	ctx, l := serviceLab(t)
	pods := echoPods(ctx, t, l)
	meet(ctx, t, pods[0], pods[1])
	web := createService(ctx, t, l, "web", corev1.ProtocolTCP, pods[1])
	addr := netip.MustParseAddr(web.Spec.ClusterIP)
	reach(ctx, t, pods[0], addr.String())
	n := l.Nodes()[0]

	once := func(what string) {
		t.Helper()
		if _, err := lab.Send(ctx, pods[0], lab.Exchange{To: addr, Port: 80, Count: 1, Timeout: 2 * time.Second}); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := n.Program("veild").Kill(ctx); err != nil {
		t.Fatal(err)
	}
	once("a connection while veild is dead")
	if err := l.Control.StopAPIServer(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := n.StartProgram(ctx, "veild"); err != nil {
		t.Fatal(err)
	}
	waitStatus(ctx, t, n, 20*time.Second, func(s telemetry.Status) error {
		if s.Services == nil || s.Services.Listed {
			return fmt.Errorf("services %+v", s.Services)
		}
		return nil
	})
	once("a connection after a start without an API server")
	if err := l.Control.StartAPIServer(ctx); err != nil {
		t.Fatal(err)
	}
	waitStatus(ctx, t, n, 30*time.Second, func(s telemetry.Status) error {
		if s.Services == nil || !s.Services.Listed {
			return fmt.Errorf("services %+v", s.Services)
		}
		return nil
	})
	once("a connection after the lists have come")
	if err := l.Control.Client.CoreV1().Services("default").Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	err := lab.Until(ctx, 10*time.Second, func() error {
		if _, err := lab.Send(ctx, pods[0], lab.Exchange{To: addr, Port: 80, Count: 1, Timeout: time.Second}); err == nil {
			return fmt.Errorf("a service that was deleted answers")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if err := n.Program("veild").Term(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Exec(ctx, l.Program("veild"), "cleanup", "--config", "/etc/kubeveil/veild.yaml"); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(n.Path("/sys/fs/bpf/kubeveil/*")); err != nil || len(left) > 0 {
		t.Errorf("after cleanup there are %v (%v)", left, err)
	}
}
