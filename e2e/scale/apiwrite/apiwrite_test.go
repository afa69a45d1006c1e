package apiwrite

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/kubeveil/kubeveil/e2e/scale/apifeed"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

var shape = apifeed.Shape{Endpoints: 250, PerService: 100}

// A created object arrives as it was made, without the fields that the API server sets.
func TestWriterSendsEachObjectOnce(t *testing.T) {
	decoder := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	var arrived atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var slice discoveryv1.EndpointSlice
		if err == nil {
			_, _, err = decoder.Decode(body, nil, &slice)
		}
		if err != nil || len(slice.Endpoints) == 0 || slice.UID != "" ||
			len(slice.ManagedFields) > 0 || r.Header.Get("Content-Type") !=
			runtime.ContentTypeProtobuf || !strings.HasSuffix(r.URL.Path,
			"/namespaces/"+slice.Namespace+"/endpointslices") {
			t.Errorf("%s %s: %+v, %v", r.Method, r.URL, slice.ObjectMeta, err)
		}
		arrived.Add(1)
		w.WriteHeader(http.StatusCreated)
	}))
	t.Cleanup(s.Close)
	w, err := New(&rest.Config{Host: s.URL})
	errtest.Must(t, err)

	for i := range shape.Services() {
		requests, err := CreateAll(shape.Slices(i))
		errtest.Must(t, err)
		errtest.Must(t, w.Send(t.Context(), requests))
	}
	if n := int(arrived.Load()); n != shape.Services() {
		t.Errorf("%d requests arrived, want %d", n, shape.Services())
	}
	w.client.CloseIdleConnections()
}

func TestWriterReportsARefusedRequest(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no room", http.StatusInsufficientStorage)
	}))
	t.Cleanup(s.Close)
	w, err := New(&rest.Config{Host: s.URL})
	errtest.Must(t, err)
	err = w.Send(t.Context(), []Request{Delete(shape.Service(1))})
	var refused *RefusedError
	if !errors.As(err, &refused) || refused.Status != http.StatusInsufficientStorage ||
		!strings.Contains(err.Error(), "DELETE /api/v1/namespaces/team-1/services/service-1: 507") {
		t.Errorf("error %v", err)
	}
	w.client.CloseIdleConnections()
}
