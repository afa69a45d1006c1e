package peer

import (
	"fmt"
	"net/netip"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kubeveil/kubeveil/pkg/service"
)

// serviceObject returns the Service object of s as it is in a cluster, with the fields that
// controllers set. Target ports are equal to the service's ports.
func serviceObject(s service.Service) *corev1.Service {
	single := corev1.IPFamilyPolicySingleStack
	out := &corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Name.Namespace, Name: s.Name.Name,
			UID: uid("service", s.Name.Name), ResourceVersion: strconv.Itoa(firstVersion),
			Labels: map[string]string{"app": s.Name.Name}},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, Selector: map[string]string{"app": s.Name.Name},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, IPFamilyPolicy: &single,
			SessionAffinity: corev1.ServiceAffinityNone,
		},
	}

	for _, a := range s.ClusterIPs {
		out.Spec.ClusterIPs = append(out.Spec.ClusterIPs, a.String())
	}
	out.Spec.ClusterIP = out.Spec.ClusterIPs[0]
	for _, p := range s.Ports {
		out.Spec.Ports = append(out.Spec.Ports, corev1.ServicePort{Name: p.Name,
			Protocol: corev1.Protocol(p.Protocol.String()), Port: int32(p.Port),
			TargetPort: intstr.FromInt32(int32(p.Port))})
	}
	if len(s.LoadBalancerIPs) == 0 {
		return out
	}

	vip, nodePorts := corev1.LoadBalancerIPModeVIP, false
	out.Spec.Type, out.Spec.AllocateLoadBalancerNodePorts = corev1.ServiceTypeLoadBalancer,
		&nodePorts
	out.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	for _, a := range s.LoadBalancerIPs {
		out.Status.LoadBalancer.Ingress = append(out.Status.LoadBalancer.Ingress,
			corev1.LoadBalancerIngress{IP: a.String(), IPMode: &vip})
	}
	return out
}

// sliceObject returns the EndpointSlice object of s as the EndpointSlice controller writes it.
func sliceObject(s service.Slice, version int) *discoveryv1.EndpointSlice {
	yes, name := true, s.Service.Name
	out := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.Service.Namespace, Name: s.Name, GenerateName: name + "-",
			UID: uid("slice", name), ResourceVersion: strconv.Itoa(version),
			Generation: int64(version),
			Labels: map[string]string{
				discoveryv1.LabelServiceName: name,
				discoveryv1.LabelManagedBy:   "endpointslice-controller.k8s.io", "app": name,
			},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service",
				Name: name, UID: uid("service", name), Controller: &yes,
				BlockOwnerDeletion: &yes}},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}

	for _, p := range s.Ports {
		protocol, number := corev1.Protocol(p.Protocol.String()), int32(p.Port)
		out.Ports = append(out.Ports, discoveryv1.EndpointPort{Name: &p.Name,
			Protocol: &protocol, Port: &number})
	}
	for i := range s.Endpoints.Len() {
		e := s.Endpoints.At(i)
		pod := fmt.Sprintf("%s-%d", name, i)
		out.Endpoints = append(out.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{e.Addr.String()}, NodeName: &e.Node,
			Conditions: discoveryv1.EndpointConditions{Ready: &e.Ready, Serving: &e.Serving,
				Terminating: &e.Terminating},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: s.Service.Namespace,
				Name: pod, UID: uid("pod", pod)},
		})
	}
	return out
}

// triggered returns the annotation with the time of the change that caused a change of the slice.
// kube-proxy measures the time of a change from then.
func triggered(at time.Time) map[string]string {
	return map[string]string{
		corev1.EndpointsLastChangeTriggerTime: at.UTC().Format(time.RFC3339Nano)}
}

// nodeObject returns the Node object of kube-proxy's node.
func nodeObject(addr netip.Addr) *corev1.Node {
	return &corev1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: NodeName, UID: uid("node", NodeName),
			ResourceVersion: strconv.Itoa(firstVersion)},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: addr.String()}}},
	}
}

// uid returns a UID in the format of a cluster's UIDs, derived from kind and name.
func uid(kind, name string) types.UID {
	return types.UID(fmt.Sprintf("%08x-%04x-4%03x-8%03x-%012x", len(kind)*7919, len(name), 7, 9,
		[]byte(name[max(0, len(name)-6):])))
}
