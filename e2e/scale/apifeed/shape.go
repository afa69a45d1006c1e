package apifeed

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Node is the name of the node whose table is made of a Shape.
const Node = "node-1.example"

const (
	// sliceSize is the number of endpoints of a slice, as the EndpointSlice controller makes them.
	sliceSize = 100
	// namespaces, nodes and zones are the numbers of those over which objects are spread.
	namespaces, nodes, zones = 100, 10000, 3
)

// Shape describes the services of a large cluster. They have all fields that controllers set.
type Shape struct {
	// Endpoints is the number of all endpoints, at most 1<<21.
	Endpoints int
	// PerService is the number of endpoints of a service. The last service has the rest.
	PerService int
	// UDP makes every service whose number is a multiple of it a service of UDP. Zero means none.
	UDP int
	// IPv6 makes all addresses IPv6.
	IPv6 bool
}

// Services returns the number of services.
func (s Shape) Services() int { return (s.Endpoints + s.PerService - 1) / s.PerService }

// Fill puts all objects of the shape.
func (s Shape) Fill(f *Feed) error {
	for i := range s.Services() {
		if err := f.Put(s.Service(i)); err != nil {
			return err
		}
		for _, slice := range s.Slices(i) {
			if err := f.Put(slice); err != nil {
				return err
			}
		}
	}
	f.Compact() // there is no watch yet
	return nil
}

// Namespaces returns the namespaces of all shapes.
func Namespaces() (all []*corev1.Namespace) {
	for i := range namespaces {
		space, _ := nameOf(i)
		all = append(all, &corev1.Namespace{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
			ObjectMeta: metav1.ObjectMeta{Name: space}})
	}
	return all
}

func (s Shape) protocol(i int) corev1.Protocol {
	if s.UDP > 0 && i%s.UDP == 0 {
		return corev1.ProtocolUDP
	}
	return corev1.ProtocolTCP
}

func nameOf(i int) (namespace, name string) {
	return fmt.Sprintf("team-%d", i%namespaces), fmt.Sprintf("service-%d", i)
}

// Service returns the service with number i.
func (s Shape) Service(i int) *corev1.Service {
	namespace, name := nameOf(i)
	ip, family := netip.AddrFrom4([4]byte{198, byte(18 + i>>16), byte(i >> 8),
		byte(i)}).String(), corev1.IPv4Protocol
	if s.IPv6 {
		ip, family = numbered("fd42::", i).String(), corev1.IPv6Protocol
	}
	single, cluster := corev1.IPFamilyPolicySingleStack, corev1.ServiceInternalTrafficPolicyCluster
	return &corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: uid("service", i),
			CreationTimestamp: created, Labels: labels(name),
			Annotations:   map[string]string{"meta.helm.sh/release-name": "shop"},
			ManagedFields: managed("v1", serviceFields)},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip},
			Selector:   map[string]string{"app.kubernetes.io/name": name},
			IPFamilies: []corev1.IPFamily{family}, IPFamilyPolicy: &single,
			InternalTrafficPolicy: &cluster, SessionAffinity: corev1.ServiceAffinityNone,
			Ports: []corev1.ServicePort{{Name: "main", Protocol: s.protocol(i), Port: 80,
				TargetPort: intstr.FromInt32(8080)}},
		},
	}
}

// Slices returns the slices of the service with number i.
func (s Shape) Slices(i int) (all []*discoveryv1.EndpointSlice) {
	end := min(s.Endpoints, (i+1)*s.PerService)
	for first := i * s.PerService; first < end; first += sliceSize {
		all = append(all, s.slice(i, first, min(sliceSize, end-first)))
	}
	return all
}

// First returns the first slice of the service with number i.
func (s Shape) First(i int) *discoveryv1.EndpointSlice {
	first := i * s.PerService
	return s.slice(i, first, min(sliceSize, s.PerService, s.Endpoints-first))
}

// slice returns a slice with the endpoints from first on.
func (s Shape) slice(i, first, n int) *discoveryv1.EndpointSlice {
	namespace, service := nameOf(i)
	yes, port, portName, protocol := true, int32(8080), "main", s.protocol(i)
	all := labels(service)
	all[discoveryv1.LabelServiceName] = service
	all[discoveryv1.LabelManagedBy] = "endpointslice-controller.k8s.io"

	out := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: fmt.Sprintf("%s-%05x", service, first/sliceSize),
			GenerateName: service + "-", UID: uid("slice", first), Generation: 1,
			CreationTimestamp: created, Labels: all,
			Annotations: map[string]string{
				corev1.EndpointsLastChangeTriggerTime: "2026-11-01T01:02:03Z"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service",
				Name: service, UID: uid("service", i), Controller: &yes,
				BlockOwnerDeletion: &yes}},
			ManagedFields: managed("discovery.k8s.io/v1", sliceFields)},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: &portName, Protocol: &protocol,
			Port: &port}},
		Endpoints: make([]discoveryv1.Endpoint, n),
	}
	if s.IPv6 {
		out.AddressType = discoveryv1.AddressTypeIPv6
	}
	for j := range out.Endpoints {
		out.Endpoints[j] = s.endpoint(namespace, service, first+j)
	}
	return out
}

// endpoint returns the endpoint with number i.
func (s Shape) endpoint(namespace, service string, i int) discoveryv1.Endpoint {
	yes, no := true, false
	node, zone := fmt.Sprintf("node-%d.example", i%nodes), fmt.Sprintf("zone-%d", i%zones)
	return discoveryv1.Endpoint{
		Addresses: []string{s.addr(i).String()}, NodeName: &node, Zone: &zone,
		Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
		TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: namespace,
			Name: fmt.Sprintf("%s-7d9f8c6b5d-%05x", service, i), UID: uid("pod", i)},
	}
}

// addr returns the address of the endpoint with number i.
func (s Shape) addr(i int) netip.Addr {
	if s.IPv6 {
		return numbered("fd43::", i)
	}
	return Addr(i)
}

// numbered returns an IPv6 address with a number in its last 32 bits.
func numbered(prefix string, i int) netip.Addr {
	a := netip.MustParseAddr(prefix).As16()
	binary.BigEndian.PutUint32(a[12:], uint32(i)+1)
	return netip.AddrFrom16(a)
}

// Addr returns the IPv4 address of the endpoint with number i, at most 1<<22.
func Addr(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{100, byte(64 + i>>16), byte(i >> 8), byte(i)})
}

var created = metav1.Unix(1790000000, 0)

func labels(service string) map[string]string {
	return map[string]string{"app.kubernetes.io/name": service,
		"app.kubernetes.io/part-of": "shop"}
}

// uid returns a UID in the format of a cluster's UIDs.
func uid(kind string, i int) types.UID {
	return types.UID(fmt.Sprintf("%08x-%04x-4%03x-8%03x-%012x", uint32(i*7919), len(kind), 7, 9, i))
}

// managed returns the managed fields of an object that one controller has written.
func managed(version, fields string) []metav1.ManagedFieldsEntry {
	at := metav1.NewTime(time.Date(2026, 11, 1, 1, 2, 3, 0, time.UTC))
	return []metav1.ManagedFieldsEntry{{Manager: "kube-controller-manager", Operation: "Update",
		APIVersion: version, Time: &at, FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(fields)}}
}

// Managed fields as controllers and Helm leave them.
const (
	sliceFields = `{"f:addressType":{},"f:endpoints":{},"f:metadata":{"f:annotations":{".":{},` +
		`"f:endpoints.kubernetes.io/last-change-trigger-time":{}},"f:generateName":{},` +
		`"f:labels":{".":{},"f:app.kubernetes.io/name":{},"f:app.kubernetes.io/part-of":{},` +
		`"f:endpointslice.kubernetes.io/managed-by":{},"f:kubernetes.io/service-name":{}},` +
		`"f:ownerReferences":{".":{},"k:{\"uid\":\"1f0c7a3e-0000-4007-8009-000000000001\"}":` +
		`{}}},"f:ports":{}}`
	serviceFields = `{"f:metadata":{"f:annotations":{".":{},"f:meta.helm.sh/release-name":{}},` +
		`"f:labels":{".":{},"f:app.kubernetes.io/name":{},"f:app.kubernetes.io/part-of":{}}},` +
		`"f:spec":{"f:internalTrafficPolicy":{},"f:ports":{".":{},` +
		`"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:name":{},"f:port":{},` +
		`"f:protocol":{},"f:targetPort":{}}},"f:selector":{},"f:sessionAffinity":{},` +
		`"f:type":{}}}`
)
