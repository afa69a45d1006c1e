package largeobject

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
	"github.com/kubeveil/kubeveil/pkg/telemetry/admin"
)

// edited is the name of the objects that are edited.
const edited = "edited"

// numberedAddr returns address i of a range that the lab does not use.
func numberedAddr(i int) string {
	return netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)}).String()
}

// makeService makes a Service with count external IPs.
func makeService(ctx context.Context, c clients, name string, count int) error {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	for i := range count {
		s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, numberedAddr(i))
	}
	_, err := c.CoreV1().Services(evil).Create(ctx, s, metav1.CreateOptions{})
	return err
}

// makeSlice makes an EndpointSlice with as many endpoints as the API server admits. each is the
// number of addresses per endpoint.
func makeSlice(ctx context.Context, c clients, name string, each int) error {
	const endpoints = 1000
	port := int32(80)
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name,
			Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Port: &port}},
	}
	for i := range endpoints {
		var e discoveryv1.Endpoint
		for j := range each {
			e.Addresses = append(e.Addresses, numberedAddr(i*each+j))
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	_, err := c.DiscoveryV1().EndpointSlices(evil).Create(ctx, s, metav1.CreateOptions{})
	return err
}

// makeEdited makes the objects that editService and editSlice edit: a Service in namespace good
// with one endpoint.
func makeEdited(ctx context.Context, c kubernetes.Interface) error {
	if _, err := c.CoreV1().Services(good).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: edited},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	port, name := int32(80), ""
	_, err := c.DiscoveryV1().EndpointSlices(good).Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: edited,
			Labels: map[string]string{discoveryv1.LabelServiceName: edited}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{numberedAddr(1)}}},
	}, metav1.CreateOptions{})
	return err
}

// editService changes the port of the Service and writes mark into it. inForce reports whether
// veild serves the new port. See objectEdit.edit.
func editService(ctx context.Context, n *lab.Node, c kubernetes.Interface,
	mark string) (inForce func() (bool, error), err error) {
	s, err := c.CoreV1().Services(good).Patch(ctx, edited, types.JSONPatchType,
		markedPatch(mark, "/spec/ports/0/port", 1+time.Now().UnixMicro()%65000),
		metav1.PatchOptions{})
	return func() (bool, error) { return traceHas(ctx, n, s, "") }, err
}

// editSlice changes the address of the endpoint and writes mark into the EndpointSlice. inForce
// reports whether veild serves the new address. See objectEdit.edit.
func editSlice(ctx context.Context, n *lab.Node, c kubernetes.Interface,
	mark string) (inForce func() (bool, error), err error) {
	s, err := c.CoreV1().Services(good).Get(ctx, edited, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	addr := numberedAddr(int(time.Now().UnixMicro() % (1 << 24)))
	_, err = c.DiscoveryV1().EndpointSlices(good).Patch(ctx, edited, types.JSONPatchType,
		markedPatch(mark, "/endpoints/0/addresses/0", addr), metav1.PatchOptions{})
	return func() (bool, error) { return traceHas(ctx, n, s, addr+":") }, err
}

// markedPatch returns a JSON patch that sets the value at path, and sets mark as the object's only
// annotation.
func markedPatch(mark, path string, value any) []byte {
	patch, err := json.Marshal([]map[string]any{
		{"op": "replace", "path": path, "value": value},
		{"op": "add", "path": "/metadata/annotations", "value": map[string]string{"edit": mark}},
	})
	if err != nil {
		panic(err) // These types always encode.
	}
	return patch
}

// traceHas reports whether veild serves a Service at its first port, and its trace of the Service
// contains text.
func traceHas(ctx context.Context, n *lab.Node, s *corev1.Service, text string) (bool, error) {
	page := telemetry.TracePath + "?" + url.Values{"protocol": {"TCP"}, "scope": {"inside"},
		"addr": {fmt.Sprintf("%s:%d", s.Spec.ClusterIP, s.Spec.Ports[0].Port)}}.Encode()
	body, err := admin.FetchPage(ctx, n.Path(abi.AdminSocket), page)
	if errors.Is(err, admin.ErrNoPage) {
		return false, nil
	}
	return err == nil && bytes.Contains(body, []byte(text)), err
}
