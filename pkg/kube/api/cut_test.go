package api

import (
	"encoding/binary"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/kube/kubetest"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
)

// A stream that ends at any byte has the events before that byte, and no part of another.
func TestStreamThatIsCutAnywhereHasWholeEvents(t *testing.T) {
	var stream []byte
	var ends []int
	for _, name := range []string{"a", "b", "c"} {
		message, err := kubetest.Protobuf("discovery.k8s.io/v1", "EndpointSlice",
			&discoveryv1.EndpointSlice{AddressType: "IPv4",
				ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "n", ResourceVersion: "1"},
				Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{"198.18.1.1"}}}})
		errtest.Must(t, err)
		event, err := (&metav1.WatchEvent{Type: string(watch.Added),
			Object: runtime.RawExtension{Raw: message}}).Marshal()
		errtest.Must(t, err)
		stream = append(binary.BigEndian.AppendUint32(stream, uint32(len(event))), event...)
		ends = append(ends, len(stream))
	}

	cut := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf+";stream=watch")
		_, _ = w.Write(stream[:cut])
	}))
	defer server.Close()
	s, err := New(&rest.Config{Host: server.URL}, nil)
	errtest.Must(t, err)
	for cut = range len(stream) + 1 {
		w, err := s.request(object.EndpointSlices, metav1.ListOptions{Watch: true}).Watch(t.Context())
		errtest.Must(t, err)
		got := 0
		for e := range w.ResultChan() {
			if o, ok := object.Held(e.Object); ok && o.Unread == nil && o.Name != "" {
				got++
			}
		}
		w.Stop()
		want := len(ends)
		if i := slices.IndexFunc(ends, func(end int) bool { return end > cut }); i >= 0 {
			want = i
		}
		if got != want {
			t.Fatalf("cut at %d of %d: %d events, want %d", cut, len(stream), got, want)
		}
	}
}
