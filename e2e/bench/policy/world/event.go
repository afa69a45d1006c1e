package world

import (
	"bytes"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// encoder encodes objects as the API server does for a watch in protobuf.
var encoder = func() runtime.Encoder {
	known := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme,
		networkingv1.AddToScheme} {
		if err := add(known); err != nil {
			panic(err) // a bug in this file
		}
	}
	return protobuf.NewSerializer(known, known)
}()

// EventOf returns the encoded watch event of a modified object.
func EventOf(o runtime.Object) ([]byte, error) {
	var object bytes.Buffer
	if err := encoder.Encode(o, &object); err != nil {
		return nil, fmt.Errorf("encode %T: %w", o, err)
	}
	e := metav1.WatchEvent{Type: string(watch.Modified),
		Object: runtime.RawExtension{Raw: object.Bytes()}}
	return e.Marshal()
}

// unread is the size in bytes of a Pod's managed fields, and of its environment. Policies need
// neither.
const unread = 2 << 10

// PodObject returns the Pod object that package kube parses as p. It has the size of a typical Pod.
func PodObject(p policy.Pod) *corev1.Pod {
	var ips []corev1.PodIP
	for _, a := range p.Addrs {
		ips = append(ips, corev1.PodIP{IP: a.String()})
	}
	var ports []corev1.ContainerPort
	for _, port := range p.Ports {
		ports = append(ports, corev1.ContainerPort{Name: port.Name, ContainerPort: int32(port.Port),
			Protocol: corev1.ProtocolTCP})
	}
	return &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name.Name,
			UID: types.UID(p.UID), Labels: p.Labels, ResourceVersion: "1",
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet",
				FieldsV1: metav1.NewFieldsV1(strings.Repeat("f", unread))}}},
		Spec: corev1.PodSpec{NodeName: p.Node, Containers: []corev1.Container{{Name: "app",
			Image: "registry.example/app:1", Ports: ports,
			Env: []corev1.EnvVar{{Name: "OPTIONS", Value: strings.Repeat("o", unread)}}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ips[0].IP, PodIPs: ips},
	}
}

// PolicyObject returns the NetworkPolicy object that package kube parses as p. p must be a policy
// of Cluster.PolicyOf.
func PolicyObject(p policy.Policy) *networkingv1.NetworkPolicy {
	o := &networkingv1.NetworkPolicy{
		TypeMeta: metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"},
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name.Name,
			ResourceVersion: "1"},
		Spec: networkingv1.NetworkPolicySpec{PodSelector: *labelSelector(p.Subjects),
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}}}
	for _, r := range p.Rules[policy.Ingress] {
		var rule networkingv1.NetworkPolicyIngressRule
		for _, peer := range r.Peers {
			rule.From = append(rule.From, networkingv1.NetworkPolicyPeer{
				NamespaceSelector: labelSelector(*peer.Namespaces),
				PodSelector:       labelSelector(*peer.Pods)})
		}
		for _, port := range r.Ports {
			tcp, number := corev1.ProtocolTCP, intstr.FromInt32(int32(port.First))
			rule.Ports = append(rule.Ports, networkingv1.NetworkPolicyPort{Protocol: &tcp,
				Port: &number})
		}
		o.Spec.Ingress = append(o.Spec.Ingress, rule)
	}
	return o
}

// labelSelector returns the object of a selector whose requirements have one value each.
func labelSelector(s policy.Selector) *metav1.LabelSelector {
	out := &metav1.LabelSelector{}
	for _, r := range s {
		metav1.AddLabelToSelector(out, r.Key, r.Values[0])
	}
	return out
}
