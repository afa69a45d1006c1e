package service

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kubeveil/kubeveil/e2e/bench/service/rules"
)

// feed implements as much of an API server as a table needs. It sends the Services and
// EndpointSlices, streamed (KEP-3157) or as a list, and then a watch of each, as JSON over TLS on a
// loopback address. Its first messages are encoded before a request arrives.
type feed struct {
	server *httptest.Server
	// first are the events of all objects by path, lists the same as lists.
	first, lists map[string][]byte
	// events holds the events of the watch of EndpointSlices that are still to be sent.
	events chan []byte
	ended  chan struct{}
}

// Paths that are served.
const (
	servicesPath = "/api/v1/services"
	slicesPath   = "/apis/discovery.k8s.io/v1/endpointslices"
)

// feedVersion is the resource version of what there is when nothing has changed.
const feedVersion = 1

// newFeed serves services; close it.
func newFeed(plan []rules.Service) (*feed, error) {
	f := &feed{first: map[string][]byte{}, lists: map[string][]byte{}, events: make(chan []byte),
		ended: make(chan struct{})}
	for path, kind := range map[string]struct {
		version, kind string
		object        func(rules.Service) any
	}{
		servicesPath: {"v1", "Service", func(s rules.Service) any { return serviceObject(s) }},
		slicesPath: {"discovery.k8s.io/v1", "EndpointSlice",
			func(s rules.Service) any { return sliceObject(s, feedVersion) }},
	} {
		var events bytes.Buffer
		items := make([]json.RawMessage, len(plan))
		for i, s := range plan {
			b, err := json.Marshal(kind.object(s))
			if err != nil {
				return nil, err
			}
			items[i] = b
			fmt.Fprintf(&events, "{\"type\":\"ADDED\",\"object\":%s}\n", b)
		}

		fmt.Fprintf(&events,
			`{"type":"BOOKMARK","object":{"apiVersion":%q,"kind":%q,"metadata":{"resourceVersion":"%d","annotations":{%q:"true"}}}}`+"\n",
			kind.version, kind.kind, feedVersion, metav1.InitialEventsAnnotationKey)
		list, err := json.Marshal(map[string]any{
			"apiVersion": kind.version, "kind": kind.kind + "List", "items": items,
			"metadata": map[string]string{"resourceVersion": strconv.Itoa(feedVersion)},
		})
		if err != nil {
			return nil, err
		}

		f.first[path], f.lists[path] = events.Bytes(), list
	}

	f.server = httptest.NewUnstartedServer(f)
	f.server.EnableHTTP2 = true
	f.server.StartTLS()
	return f, nil
}

// close ends the server and what it sends.
func (f *feed) close() {
	close(f.ended)
	f.server.Close()
}

// writeConfig writes a kubeconfig for it.
func (f *feed) writeConfig(path string) error {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.server.Certificate().Raw})
	return os.WriteFile(path, fmt.Appendf(nil, `apiVersion: v1
kind: Config
current-context: bench
clusters: [{name: bench, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: bench, user: {token: bench}}]
contexts: [{name: bench, context: {cluster: bench, user: bench}}]
`, f.server.URL, base64.StdEncoding.EncodeToString(ca)), 0o600)
}

// send sends an event to the watch of EndpointSlices and returns when the server has taken it to
// write it.
func (f *feed) send(ctx context.Context, event []byte) error {
	select {
	case f.events <- event:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// ServeHTTP answers lists and watches.
func (f *feed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	list, known := f.lists[r.URL.Path]
	if !known {
		http.NotFound(w, r)
		return
	}

	w.Header().Set("Content-Type", "application/json")
	if query.Get("watch") == "" {
		_, _ = w.Write(list)
		return
	}

	if query.Get("sendInitialEvents") == "true" {
		if _, err := w.Write(f.first[r.URL.Path]); err != nil {
			return
		}
	}

	events := f.events
	if r.URL.Path != slicesPath {
		events = nil
	}

	for {
		_ = http.NewResponseController(w).Flush()
		select {
		case e := <-events:
			if _, err := w.Write(e); err != nil {
				return
			}
		case <-r.Context().Done():
			return
		case <-f.ended:
			return
		}
	}
}

// serviceObject is a service as it is in a cluster, with what its controllers write.
func serviceObject(s rules.Service) *corev1.Service {
	single := corev1.IPFamilyPolicySingleStack
	return &corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name,
			UID: uid("service", s.Name), ResourceVersion: strconv.Itoa(feedVersion),
			Labels: map[string]string{"app": s.Name}},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: s.ClusterIP.String(),
			ClusterIPs: []string{s.ClusterIP.String()}, Selector: map[string]string{"app": s.Name},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, IPFamilyPolicy: &single,
			SessionAffinity: corev1.ServiceAffinityNone,
			Ports: []corev1.ServicePort{{Name: s.Port, Protocol: corev1.ProtocolTCP,
				Port: int32(s.Number), TargetPort: intstr.FromInt32(int32(s.Target))}},
		},
	}
}

// sliceObject is the endpoints of a service as the endpoint controller writes them.
func sliceObject(s rules.Service, version int) *discoveryv1.EndpointSlice {
	yes, no, node := true, false, "other"
	protocol, port := corev1.ProtocolTCP, int32(s.Target)
	out := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.Namespace, Name: s.Name + "-x7k2p", GenerateName: s.Name + "-",
			UID: uid("slice", s.Name), ResourceVersion: strconv.Itoa(version),
			Generation: int64(version),
			Labels: map[string]string{
				discoveryv1.LabelServiceName: s.Name,
				discoveryv1.LabelManagedBy:   "endpointslice-controller.k8s.io", "app": s.Name,
			},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service",
				Name: s.Name, UID: uid("service", s.Name), Controller: &yes,
				BlockOwnerDeletion: &yes}},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &s.Port, Protocol: &protocol, Port: &port}},
	}

	for i, b := range s.Backends {
		pod := fmt.Sprintf("%s-%d", s.Name, i)
		out.Endpoints = append(out.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{b.String()}, NodeName: &node,
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes,
				Terminating: &no},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: s.Namespace, Name: pod,
				UID: uid("pod", pod)},
		})
	}

	return out
}

// uid returns a UID that looks like the UIDs of a cluster.
func uid(kind, name string) types.UID {
	return types.UID(fmt.Sprintf("%08x-%04x-4%03x-8%03x-%012x", len(kind)*7919, len(name), 7, 9,
		[]byte(name[max(0, len(name)-6):])))
}

// changeEvent returns the event of the watch for changed endpoints of a service.
func changeEvent(s rules.Service, version int) ([]byte, error) {
	b, err := json.Marshal(sliceObject(s, version))
	return fmt.Appendf(nil, "{\"type\":\"MODIFIED\",\"object\":%s}\n", b), err
}
