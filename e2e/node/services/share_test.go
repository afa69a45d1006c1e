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
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// A namespace that asks for more than its share of the table of services loses its own last
// Services and EndpointSlices. The Services of another namespace are served as before, and so are
// those that come later.
func TestNamespaceBeyondItsShareOfServicesCostsItself(t *testing.T) {
	// One namespace may have 4,096 frontends and 2,048 endpoints.
	ctx, l := nodetest.NewLab(t, lab.Options{VeildConfig: map[string]any{"serviceProxy": "ebpf",
		"services": map[string]any{"limits": map[string]any{
			"frontends": 1 << 13, "backendSlots": 1 << 16}}}})
	client, pods := namedPods(ctx, t, l, 1, "a", "b")
	web := publish(ctx, t, l, "web", corev1.ServiceSpec{}, pods[1])
	served := func(s *corev1.Service) {
		t.Helper()
		for _, six := range []bool{false, true} {
			for _, proto := range []string{"tcp", "udp"} {
				answers(ctx, t, client, traffic.Question{To: clusterIP(t, s, six), Proto: proto},
					everyone("b"))
			}
		}
	}
	served(web)

	errtest.Must(t, l.Control.AddNamespace(ctx, "evil"))
	for i := range 6 { // four fit
		makeWideService(ctx, t, l, "evil", fmt.Sprint("wide-", i))
	}
	for i := range 4 { // two fit
		makeWideSlice(ctx, t, l, "evil", fmt.Sprint("wide-", i))
	}
	want := []telemetry.LeftOut{{Kind: "EndpointSlice", Namespace: "evil", Count: 2},
		{Kind: "Service", Namespace: "evil", Count: 2}}
	for _, n := range l.Nodes() {
		nodetest.WaitStatus(ctx, t, n, 20*time.Second, func(s telemetry.Status) error {
			text := strings.Join(s.Problems, "\n")
			if s.Services == nil || !slices.Equal(s.Services.LeftOut, want) ||
				!strings.Contains(text, "Services of namespace evil: ") ||
				!strings.Contains(text, "EndpointSlices of namespace evil: ") {
				return fmt.Errorf("services %+v, problems %q", s.Services, s.Problems)
			}
			return nil
		})
	}

	served(web)
	served(publish(ctx, t, l, "late", corev1.ServiceSpec{}, pods[1]))
	noLeaksBetween(t, l)
}

// makeWideService makes a Service that asks for 1,024 frontends.
func makeWideService(ctx context.Context, t *testing.T, l *lab.Lab, namespace, name string) {
	t.Helper()
	both := corev1.IPFamilyPolicyRequireDualStack
	spec := corev1.ServiceSpec{IPFamilyPolicy: &both}
	for i := range int32(512) {
		spec.Ports = append(spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: i + 1})
	}
	if _, err := l.Control.Client.CoreV1().Services(namespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// makeWideSlice makes an EndpointSlice with 1,000 endpoints, the most that the API server admits.
func makeWideSlice(ctx context.Context, t *testing.T, l *lab.Lab, namespace, name string) {
	t.Helper()
	port, portName := int32(80), "p0"
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name,
			Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &portName, Port: &port}},
	}
	for i := range 1000 {
		addr := netip.AddrFrom4([4]byte{11, 0, byte(i >> 8), byte(i)}).String()
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{addr}})
	}
	if _, err := l.Control.Client.DiscoveryV1().EndpointSlices(namespace).Create(ctx, slice,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}
