package wire_test

import (
	"errors"
	"net/netip"
	"testing"
	"unique"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/kube/wire"
)

func to[T any](v T) *T { return &v }

func busyService() *corev1.Service {
	return &corev1.Service{ObjectMeta: busyPod().ObjectMeta,
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "198.18.128.1",
			ClusterIPs: []string{"198.18.128.1", "fd42::1"}, ExternalIPs: []string{"203.0.113.1"},
			Selector:                 map[string]string{"app": "web"},
			LoadBalancerSourceRanges: []string{"203.0.113.0/24"},
			ExternalTrafficPolicy:    corev1.ServiceExternalTrafficPolicyLocal,
			InternalTrafficPolicy:    to(corev1.ServiceInternalTrafficPolicyLocal),
			SessionAffinity:          corev1.ServiceAffinityClientIP,
			SessionAffinityConfig: &corev1.SessionAffinityConfig{
				ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: to(int32(7))}},
			HealthCheckNodePort: 31000,
			Ports: []corev1.ServicePort{{Name: "a", Protocol: corev1.ProtocolUDP, Port: 53,
				NodePort: 30053}, {}}},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{
			Ingress: []corev1.LoadBalancerIngress{{IP: "203.0.113.9",
				IPMode: to(corev1.LoadBalancerIPModeProxy)}, {Hostname: "x"}}}}}
}

func wantService(s *corev1.Service) wire.Service {
	w := wire.Service{Meta: wantMeta(s.ObjectMeta), Type: string(s.Spec.Type),
		ClusterIP: s.Spec.ClusterIP, ClusterIPs: s.Spec.ClusterIPs,
		ExternalIPs: s.Spec.ExternalIPs, SourceRanges: s.Spec.LoadBalancerSourceRanges,
		ExternalTrafficPolicy: string(s.Spec.ExternalTrafficPolicy),
		SessionAffinity:       string(s.Spec.SessionAffinity),
		HealthCheckNodePort:   s.Spec.HealthCheckNodePort}
	w.Labels = kept(s.Labels, reader.Labels)
	if p := s.Spec.InternalTrafficPolicy; p != nil {
		w.InternalTrafficPolicy = string(*p)
	}
	if c := s.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil &&
		c.ClientIP.TimeoutSeconds != nil {
		w.AffinitySeconds = *c.ClientIP.TimeoutSeconds
	}

	for _, p := range s.Spec.Ports {
		w.Ports = append(w.Ports, wire.ServicePort{Name: p.Name, Protocol: string(p.Protocol),
			Port: p.Port, NodePort: p.NodePort})
	}
	for _, i := range s.Status.LoadBalancer.Ingress {
		w.Ingress = append(w.Ingress, wire.LoadBalancerIngress{IP: i.IP,
			IPMode: (*string)(i.IPMode)})
	}
	return w
}

func busySlice() *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{ObjectMeta: busyPod().ObjectMeta,
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"198.18.1.1", "198.18.1.2"},
			NodeName: to("node-1"), Zone: to("z"), Hostname: to("h"),
			TargetRef: &corev1.ObjectReference{Name: "web-0"},
			Conditions: discoveryv1.EndpointConditions{Ready: to(true), Serving: to(false),
				Terminating: to(true)},
			Hints: &discoveryv1.EndpointHints{
				ForZones: []discoveryv1.ForZone{{Name: "z"}, {Name: "y"}},
				ForNodes: []discoveryv1.ForNode{{Name: "node-1"}, {}}}}, {}},
		Ports: []discoveryv1.EndpointPort{{Name: to("a"), Protocol: to(corev1.ProtocolSCTP),
			Port: to(int32(9)), AppProtocol: to("x")}, {}}}
}

// sameSlices are the options to compare EndpointSlices.
var sameSlices = cmp.Options{cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{},
	unique.Handle[string]{})}

func wantSlice(s *discoveryv1.EndpointSlice) wire.EndpointSlice {
	w := wire.EndpointSlice{Meta: wantMeta(s.ObjectMeta), AddressType: string(s.AddressType)}
	w.Labels = kept(s.Labels, reader.Labels)
	for _, e := range s.Endpoints {
		out := wire.Endpoint{Ready: e.Conditions.Ready, Serving: e.Conditions.Serving,
			Terminating: e.Conditions.Terminating}
		if len(e.Addresses) > 0 {
			if addr, err := netip.ParseAddr(e.Addresses[0]); err == nil && addr.Zone() == "" {
				out.Addr = addr.Unmap()
			} else {
				w.Malformed = e.Addresses[0]
			}
		}
		if e.NodeName != nil {
			out.Node = unique.Make(*e.NodeName)
		}
		if h := e.Hints; h != nil {
			for _, z := range h.ForZones {
				out.ForZones = append(out.ForZones, z.Name)
			}
			for _, n := range h.ForNodes {
				out.ForNodes = append(out.ForNodes, n.Name)
			}
		}

		w.Endpoints = append(w.Endpoints, out)
	}
	for _, p := range s.Ports {
		out := wire.EndpointPort{Port: p.Port}
		if p.Name != nil {
			out.Name = *p.Name
		}
		if p.Protocol != nil {
			out.Protocol = string(*p.Protocol)
		}
		w.Ports = append(w.Ports, out)
	}
	return w
}

func TestServiceAndSliceAreReadAsByKubernetes(t *testing.T) {
	for _, s := range []*corev1.Service{busyService(), {}} {
		got, err := reader.Service(marshal(t, s))
		if d := cmp.Diff(wantService(s), got, cmpopts.EquateEmpty()); err != nil || d != "" {
			t.Errorf("%v, k8s.io/api -, ours +:\n%s", err, d)
		}
	}
	for _, s := range []*discoveryv1.EndpointSlice{busySlice(), {}} {
		got, err := reader.EndpointSlice(marshal(t, s))
		if d := cmp.Diff(wantSlice(s), got, sameSlices); err != nil || d != "" {
			t.Errorf("%v, k8s.io/api -, ours +:\n%s", err, d)
		}
	}
}

// An EndpointSlice with all the endpoints that the API has is read whole.
func TestBoundAdmitsTheLargestEndpointSlice(t *testing.T) {
	s := busySlice()
	for range 999 {
		s.Endpoints = append(s.Endpoints, s.Endpoints[0])
	}
	got, err := reader.EndpointSlice(marshal(t, s))
	if err != nil || got.Excess || len(got.Endpoints) != 1001 {
		t.Errorf("%d endpoints, excess %t, %v", len(got.Endpoints), got.Excess, err)
	}
}

func FuzzService(f *testing.F) {
	f.Add(marshal(f, busyService()))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := reader.Service(data)
		if err != nil && !errors.Is(err, wire.ErrMalformed) {
			t.Fatalf("%v does not match ErrMalformed", err)
		}
		var theirs corev1.Service
		if theirs.Unmarshal(data) != nil {
			return
		}
		got, err = reader.Service(marshal(t, &theirs))
		if err == nil && excessive(got.Meta, got.Excess) {
			return
		}
		if d := cmp.Diff(wantService(&theirs), got, cmpopts.EquateEmpty()); err != nil || d != "" {
			t.Fatalf("what k8s.io/api wrote: %v\n%s", err, d)
		}
	})
}

func FuzzEndpointSlice(f *testing.F) {
	f.Add(marshal(f, busySlice()))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := reader.EndpointSlice(data)
		if err != nil && !errors.Is(err, wire.ErrMalformed) {
			t.Fatalf("%v does not match ErrMalformed", err)
		}
		var theirs discoveryv1.EndpointSlice
		if theirs.Unmarshal(data) != nil {
			return
		}
		got, err = reader.EndpointSlice(marshal(t, &theirs))
		if err == nil && excessive(got.Meta, got.Excess) {
			return
		}
		if d := cmp.Diff(wantSlice(&theirs), got, sameSlices); err != nil || d != "" {
			t.Fatalf("what k8s.io/api wrote: %v\n%s", err, d)
		}
	})
}

func BenchmarkEndpointSlice(b *testing.B) {
	s := metav1.ObjectMeta{Name: "web"}
	slice := discoveryv1.EndpointSlice{ObjectMeta: s}
	for range 100 {
		slice.Endpoints = append(slice.Endpoints, busySlice().Endpoints[0])
	}
	data := marshal(b, &slice)
	b.ReportAllocs()
	for b.Loop() {
		errtest.Must(b, errtest.Of(reader.EndpointSlice(data)))
	}
}
