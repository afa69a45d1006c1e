package remote

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const endpointPatience = time.Minute

// Service describes a service that Serve creates. It has the same port for TCP and UDP, and both
// families if the cluster is dual-stack.
type Service struct {
	Name string
	// Pods is the selector of the service. Nil means {"app": Name}.
	Pods map[string]string
	// Port is the port of the service; 0 means EchoPort. Target is the port of its pods; 0 means
	// Port.
	Port, Target int
	// Type is the type of the service. "" means ClusterIP.
	Type corev1.ServiceType
	// Headless makes a service without an address. Its name resolves to the addresses of its pods.
	Headless bool
	// Local sets the internal traffic policy, and the external one if Type has one, to Local.
	Local bool
	// Change is called with the object before it is created, if it is not nil.
	Change func(*corev1.Service)

	// Addrs are the cluster IPs, set by Serve. A headless service has none.
	Addrs []netip.Addr
	// NodePorts are the node ports by protocol, "tcp" or "udp", set by Serve. 0 means none.
	NodePorts map[string]int
}

// Addr returns the service's address of a family.
func (s *Service) Addr(is4 bool) (netip.Addr, bool) { return ofFamily(s.Addrs, is4) }

func (s *Service) object() *corev1.Service {
	if s.Pods == nil {
		s.Pods = map[string]string{"app": s.Name}
	}
	s.Port = cmp.Or(s.Port, EchoPort)
	s.Target = cmp.Or(s.Target, s.Port)
	s.Type = cmp.Or(s.Type, corev1.ServiceTypeClusterIP)

	dual := corev1.IPFamilyPolicyPreferDualStack
	object := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: s.Name, Labels: map[string]string{"app": s.Name}},
		Spec:       corev1.ServiceSpec{Type: s.Type, Selector: s.Pods, IPFamilyPolicy: &dual},
	}

	for _, proto := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} {
		object.Spec.Ports = append(object.Spec.Ports, corev1.ServicePort{
			Name: strings.ToLower(string(proto)), Protocol: proto, Port: int32(s.Port),
			TargetPort: intstr.FromInt(s.Target),
		})
	}

	if s.Headless {
		object.Spec.ClusterIP = corev1.ClusterIPNone
	}

	if s.Local {
		local := corev1.ServiceInternalTrafficPolicyLocal
		object.Spec.InternalTrafficPolicy = &local
		if s.Type != corev1.ServiceTypeClusterIP {
			object.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		}
	}

	return object
}

// Serve creates the service and waits until it has a ready endpoint of each of its families.
// Service proxies on nodes may not have it yet, so callers retry their first connection.
func (n *Namespace) Serve(ctx context.Context, s *Service) error {
	object := s.object()
	object.Labels[SuiteLabel] = n.suite
	if s.Change != nil {
		s.Change(object)
	}
	got, err := n.Cluster.Client.CoreV1().Services(n.Name).Create(ctx, object,
		metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create service %s: %w", s.Name, err)
	}
	s.Addrs, s.NodePorts = nil, map[string]int{}
	for _, ip := range got.Spec.ClusterIPs {
		if addr, err := netip.ParseAddr(ip); err == nil {
			s.Addrs = append(s.Addrs, addr)
		}
	}
	for _, p := range got.Spec.Ports {
		s.NodePorts[strings.ToLower(string(p.Protocol))] = int(p.NodePort)
	}
	if got.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	return n.WaitEndpoints(ctx, s.Name, len(got.Spec.IPFamilies))
}

// WaitEndpoints waits until the service has ready endpoints of this number of families.
func (n *Namespace) WaitEndpoints(ctx context.Context, service string, families int) error {
	slicesOf := n.Cluster.Client.DiscoveryV1().EndpointSlices(n.Name)
	return Until(ctx, "endpoints of service "+service, endpointPatience,
		func(ctx context.Context) error {
			list, err := slicesOf.List(ctx,
				metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service})
			if err != nil {
				return err
			}
			have := map[discoveryv1.AddressType]bool{}
			for _, s := range list.Items {
				for _, e := range s.Endpoints {
					if e.Conditions.Ready == nil || *e.Conditions.Ready {
						have[s.AddressType] = true
					}
				}
			}
			if len(have) < families {
				return fmt.Errorf("ready in %d families of %d", len(have), families)
			}
			return nil
		})
}
