package object

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/kube/kubetest"
)

// decoders returns the decoders of events and objects in protobuf of a serializer, as the client
// library makes them.
func decoders(t testing.TB, s runtime.NegotiatedSerializer) (events, objects runtime.Decoder) {
	t.Helper()
	objects, events, _, err := runtime.NewClientNegotiator(s, schema.GroupVersion{}).StreamDecoder(
		runtime.ContentTypeProtobuf, nil)
	errtest.Must(t, err)
	return events, objects
}

// frame returns an event of a watch.
func frame(t testing.TB, eventType, version, kind string,
	o interface{ Marshal() ([]byte, error) }) []byte {
	t.Helper()
	message, err := kubetest.Protobuf(version, kind, o)
	errtest.Must(t, err)
	event, err := (&metav1.WatchEvent{Type: eventType,
		Object: runtime.RawExtension{Raw: message}}).Marshal()
	errtest.Must(t, err)
	return event
}

// samples returns events of all types and of several kinds.
func samples(t testing.TB) [][]byte {
	meta := metav1.ObjectMeta{Namespace: "shop", Name: "web", ResourceVersion: "7",
		Labels: map[string]string{ServiceNameLabel: "web"}}
	end := metav1.ObjectMeta{ResourceVersion: "7",
		Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}
	return [][]byte{
		frame(t, "ADDED", "v1", "Service", &corev1.Service{ObjectMeta: meta,
			Spec: corev1.ServiceSpec{ClusterIP: "198.18.128.1"}}),
		frame(t, "MODIFIED", "discovery.k8s.io/v1", "EndpointSlice",
			&discoveryv1.EndpointSlice{ObjectMeta: meta, AddressType: "IPv4",
				Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"198.18.1.1"}}}}),
		frame(t, "DELETED", "v1", "Node", &corev1.Node{ObjectMeta: meta,
			Spec: corev1.NodeSpec{PodCIDR: "198.18.0.0/24"}}),
		frame(t, "ADDED", "networking.k8s.io/v1", "NetworkPolicy",
			&networkingv1.NetworkPolicy{ObjectMeta: meta}),
		frame(t, "BOOKMARK", "v1", "Pod", &corev1.Pod{ObjectMeta: end}),
		frame(t, "ERROR", "v1", "Status", &metav1.Status{Reason: "Expired", Code: 410}),
	}
}

// decode decodes an event and its object.
func decode(events, objects runtime.Decoder, data []byte) (eventType string, o runtime.Object,
	err error) {
	var e metav1.WatchEvent
	if _, _, err := events.Decode(data, nil, &e); err != nil {
		return "", nil, err
	}
	o, err = runtime.Decode(objects, e.Object.Raw)
	return e.Type, o, err
}

// same returns how objects of this package differ.
func same(a, b runtime.Object) string {
	return cmp.Diff(a, b, cmp.Exporter(func(reflect.Type) bool { return true }),
		cmpopts.EquateErrors())
}

// What is read in place is what the serializers of the client library read, and nothing of it
// changes with the memory of the message.
func TestEventsReadInPlaceAreTheSame(t *testing.T) {
	theirEvents, theirObjects := decoders(t, codecs.WithoutConversion())
	events, objects := decoders(t, Serializers)
	for i, data := range samples(t) {
		wantType, want, err := decode(theirEvents, theirObjects, bytes.Clone(data))
		errtest.Must(t, err)
		gotType, got, err := decode(events, objects, data)
		errtest.Must(t, err)
		clear(data)
		if d := same(want, got); d != "" || gotType != wantType {
			t.Errorf("event %d: %s, want %s:\n%s", i, gotType, wantType, d)
		}
	}
}

// FuzzEventInPlace checks that each event that the client library can read is read in place, with
// the same name, and that no other panics.
func FuzzEventInPlace(f *testing.F) {
	theirEvents, theirObjects := decoders(f, codecs.WithoutConversion())
	events, objects := decoders(f, Serializers)
	for _, data := range samples(f) {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		_, want, theirs := decode(theirEvents, theirObjects, bytes.Clone(data))
		_, got, err := decode(events, objects, data)
		if theirs != nil || err != nil {
			return // each library refuses some fields that it does not need
		}
		a, isA := Held(want)
		b, isB := Held(got)
		if isA != isB || isA && (a.Name != b.Name || a.ResourceVersion != b.ResourceVersion) {
			t.Errorf("%+v, want %+v", got, want)
		}
	})
}
