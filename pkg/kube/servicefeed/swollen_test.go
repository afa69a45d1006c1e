package servicefeed

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/pkg/kube/feed"
	"github.com/kubeveil/kubeveil/pkg/kube/kubetest"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
)

// readKind returns the read of a kind in protobuf.
func readKind[T any](parse func(*object.Object) feed.Parsed[T]) func([]byte) (any, string, error) {
	return func(message []byte) (any, string, error) {
		o, _, err := object.FromProtobuf(message)
		if err != nil {
			return nil, "", err
		}
		p := parse(o)
		return p, p.Problem, nil
	}
}

// One object of the largest size that etcd accepts costs this process little.
func TestLargeObjectIsCountedWhileItIsRead(t *testing.T) {
	all := map[string]kubetest.Swollen{}
	add := func(name string, of func(s *corev1.Service, n int)) {
		all["Service, "+name] = kubetest.Grow(t, func(n int) ([]byte, error) {
			s := corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: "198.18.128.1"}}
			of(&s, n)
			return kubetest.Protobuf("v1", "Service", &s)
		}, readKind(parseService))
	}
	add("ports", func(s *corev1.Service, n int) { s.Spec.Ports = make([]corev1.ServicePort, n) })
	add("clusterIPs", func(s *corev1.Service, n int) { s.Spec.ClusterIPs = kubetest.Numbered(n) })
	add("externalIPs", func(s *corev1.Service, n int) { s.Spec.ExternalIPs = kubetest.Numbered(n) })
	add("ranges", func(s *corev1.Service, n int) {
		s.Spec.LoadBalancerSourceRanges = kubetest.Numbered(n)
	})
	add("ingress", func(s *corev1.Service, n int) {
		s.Status.LoadBalancer.Ingress = make([]corev1.LoadBalancerIngress, n)
	})

	slice := func(name string, of func(s *discoveryv1.EndpointSlice, n int)) {
		all["EndpointSlice, "+name] = kubetest.Grow(t, func(n int) ([]byte, error) {
			s := discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
				Labels: map[string]string{object.ServiceNameLabel: "web"}}, AddressType: "IPv4"}
			of(&s, n)
			return kubetest.Protobuf("discovery.k8s.io/v1", "EndpointSlice", &s)
		}, readKind(parseEndpoints))
	}
	slice("ports", func(s *discoveryv1.EndpointSlice, n int) {
		s.Ports = make([]discoveryv1.EndpointPort, n)
	})
	slice("endpoints", func(s *discoveryv1.EndpointSlice, n int) {
		s.Endpoints = kubetest.Repeat(n, func(int) discoveryv1.Endpoint {
			return discoveryv1.Endpoint{Addresses: []string{"198.18.1.1"}}
		})
	})
	hinted := func(hints discoveryv1.EndpointHints) []discoveryv1.Endpoint {
		return []discoveryv1.Endpoint{{Addresses: []string{"198.18.1.1"}, Hints: &hints}}
	}
	slice("hints for zones", func(s *discoveryv1.EndpointSlice, n int) {
		s.Endpoints = hinted(discoveryv1.EndpointHints{
			ForZones: make([]discoveryv1.ForZone, n)})
	})
	slice("hints for nodes", func(s *discoveryv1.EndpointSlice, n int) {
		s.Endpoints = hinted(discoveryv1.EndpointHints{
			ForNodes: make([]discoveryv1.ForNode, n)})
	})
	kubetest.Check(t, all)
}
