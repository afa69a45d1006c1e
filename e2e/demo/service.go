package demo

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
)

// iperfPort is the default port of iperf3, where the servers of package load listen.
const iperfPort = 5201

// serve makes two services for the pod of the first node. The backends of balanced are the pods of
// all other nodes. The only backend of measured is the pod of the second node, so that its figure
// has the same path as pod to pod.
func (n *network) serve(ctx context.Context) (err error) {
	if n.balanced, err = addService(ctx, n.lab, "balanced", traffic.EchoPort,
		n.pods[1:]...); err != nil {
		return err
	}
	n.measured, err = addService(ctx, n.lab, "measured", iperfPort, n.pods[1])
	return err
}

// addService makes a service for TCP and UDP on port, which is also the port of the backends. It
// makes the EndpointSlices as the endpoint controller would. It returns the service's addresses,
// IPv4 first.
func addService(ctx context.Context, l *lab.Lab, name string, port int32,
	backends ...*lab.Pod) ([]netip.Addr, error) {
	both := corev1.IPFamilyPolicyRequireDualStack
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{IPFamilyPolicy: &both}}
	var ports []discoveryv1.EndpointPort
	for _, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} {
		portName := strings.ToLower(string(protocol))
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: portName, Protocol: protocol,
			Port: port})
		ports = append(ports, discoveryv1.EndpointPort{Name: &portName, Protocol: &protocol,
			Port: &port})
	}

	s, err := l.Control.Client.CoreV1().Services(namespace).Create(ctx, s,
		metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("service %s: %w", name, err)
	}

	var addrs []netip.Addr
	for _, text := range s.Spec.ClusterIPs {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("service %s: %w", name, err)
		}
		addrs = append(addrs, addr)
		slice := endpointSlice(name, addr.Is6(), backends)
		slice.Ports = ports
		if _, err := l.Control.Client.DiscoveryV1().EndpointSlices(namespace).Create(
			ctx, slice, metav1.CreateOptions{}); err != nil {
			return nil, fmt.Errorf("endpoints of service %s: %w", name, err)
		}
	}

	return addrs, nil
}

// endpointSlice returns an EndpointSlice with the pods' addresses of one family, without ports.
func endpointSlice(service string, six bool, pods []*lab.Pod) *discoveryv1.EndpointSlice {
	family := discoveryv1.AddressTypeIPv4
	if six {
		family = discoveryv1.AddressTypeIPv6
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: service + "-" + strings.ToLower(string(family)),
			Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: family,
	}
	for _, p := range pods {
		ready, node := true, p.Node.Name
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{p.Addr(six).String()}, NodeName: &node,
			Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		})
	}
	return slice
}
