package inventory

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
	"github.com/kubeveil/kubeveil/pkg/site/record"
)

// beyond returns how many objects a store counts as left out.
func beyond[T any](s *store[T]) int {
	n, _ := s.beyond()
	return n
}

// partsOf is an API server that has these EndpointSlices.
func partsOf(parts map[string]*object.Object) http.HandlerFunc {
	return func(w http.ResponseWriter, q *http.Request) {
		items := []json.RawMessage{}
		for _, o := range parts {
			service := o.Labels[discoveryv1.LabelServiceName]
			if q.FormValue("labelSelector") == discoveryv1.LabelServiceName+"="+service {
				items = append(items, fmt.Appendf(nil, `{"metadata":{"namespace":%q,"name":%q,`+
					`"resourceVersion":"6","labels":{%q:%q}},"addressType":"IPv4","endpoints":%s}`,
					o.Namespace, o.Name, discoveryv1.LabelServiceName, service, o.Endpoints))
			}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "List", "apiVersion": "v1",
			"metadata": map[string]any{"resourceVersion": "7"}, "items": items})
	}
}

// EndpointSlices that were left out return once there is room, without an event of them. While there
// is none, the service is not read again.
func TestLeftOutEndpointsReturn(t *testing.T) {
	l := newTestLocal(t)
	const each = 1000
	parts := map[string]*object.Object{}
	for i := range MaxWeight/(each+1) + 3 {
		name := fmt.Sprint("web-", i)
		parts[name] = sliceObject(name, "web", each)
		errtest.Must(t, l.slices.Add(parts[name].DeepCopyObject()))
	}
	server, web := serve(t, partsOf(parts)), record.Key{Namespace: "shop", Name: "web"}
	asks := func() bool {
		l.askForLeft()
		_, asks := l.wanted.unreadNow()[web]
		return asks
	}
	if left := beyond(l.slices); left != 3 || asks() {
		t.Fatalf("%d are left out; the service is read again without room: %v", left, asks())
	}

	for i := range 2 {
		name := fmt.Sprint("web-", i)
		errtest.Must(t, l.slices.Delete(parts[name]))
		delete(parts, name)
	}
	if !asks() {
		t.Fatal("the service is not read again")
	}
	errtest.Must(t, l.fetch(t.Context(), server, web))
	if n, left := len(namesIn(l.slices)), beyond(l.slices); n != len(parts)-1 || left != 1 || asks() {
		t.Errorf("%d of %d are kept, %d are left out, read again: %v", n, len(parts), left, asks())
	}

	errtest.Must(t, l.slices.Add(sliceObject("web-2", "web", 1))) // It has fewer endpoints.
	parts["web-2"] = sliceObject("web-2", "web", 1)
	if !asks() {
		t.Fatal("the service is not read again")
	}
	errtest.Must(t, l.fetch(t.Context(), server, web))
	if got := namesIn(l.slices); !slices.Equal(got, slices.Sorted(maps.Keys(parts))) || asks() {
		t.Errorf("%q are kept", got)
	}
}

// Beyond MaxLeft, objects are not counted. They return after those that are.
func TestUncountedEndpointsReturn(t *testing.T) {
	l := newTestLocal(t)
	parts := map[string]*object.Object{}
	server := serve(t, partsOf(parts))
	readAll := func() {
		t.Helper()
		l.askForLeft()
		for k := range l.wanted.unreadNow() {
			errtest.Must(t, l.fetch(t.Context(), server, k))
		}
	}
	errtest.Must(t, l.exports.Add(named("later", nil)))
	readAll()

	add := func(name, service string, n int) {
		t.Helper()
		parts[name] = sliceObject(name, service, n)
		errtest.Must(t, l.slices.Add(parts[name].DeepCopyObject()))
	}
	for i := range 40 {
		add(fmt.Sprint("large-", i), "web", MaxWeight/40-1)
	}
	for i := range MaxLeft {
		add(fmt.Sprint("small-", i), "web", 1)
	}
	add("uncounted", "later", 1)
	if n, more := l.slices.beyond(); n != MaxLeft || !more {
		t.Fatalf("%d are left out, and more: %v", n, more)
	}

	for i := range 40 {
		name := fmt.Sprint("large-", i)
		errtest.Must(t, l.slices.Delete(parts[name]))
		delete(parts, name)
	}
	readAll()
	if n, more := l.slices.beyond(); n != 0 || !more {
		t.Errorf("%d are left out, and more: %v", n, more)
	}
	readAll()
	if n, more := l.slices.beyond(); n != 0 || more || len(namesIn(l.slices)) != len(parts) {
		t.Errorf("%d of %d are kept, %d are left out, and more: %v", len(namesIn(l.slices)),
			len(parts), n, more)
	}
}
