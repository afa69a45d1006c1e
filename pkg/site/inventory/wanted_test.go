package inventory

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/kube/api"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
	"github.com/kubeveil/kubeveil/pkg/site/mirror"
	"github.com/kubeveil/kubeveil/pkg/site/record"
)

const oneEndpoint = `[{"addresses":["10.244.1.5"]}]`

// named returns an object in namespace shop with these labels.
func named(name string, labels map[string]string) *object.Object {
	return &object.Object{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: labels,
		ResourceVersion: "1"}}
}

func ours() map[string]string { return map[string]string{mirror.ManagedByLabel: mirror.ManagedBy} }

func serviceObject(name string, labels map[string]string) *object.Object {
	o := named(name, labels)
	o.Spec = []byte(`{"ports":[{"port":80}]}`)
	return o
}

// sliceObject returns an EndpointSlice of a service with some endpoints.
func sliceObject(name, service string, n int) *object.Object {
	o := named(name, map[string]string{discoveryv1.LabelServiceName: service})
	o.AddressType = "IPv4"
	o.Endpoints = []byte("[" + strings.Repeat(`{"addresses":["10.244.1.5"]},`, n-1) +
		`{"addresses":["10.244.1.5"]}]`)
	return o
}

// list passes objects to a store as one list.
func list[T any](t *testing.T, s *store[T], objects ...*object.Object) {
	t.Helper()
	errtest.Must(t, replace(s, objects...))
}

func replace[T any](s *store[T], objects ...*object.Object) error {
	present, kept := s.BeginList(), []any{}
	for _, o := range objects {
		if present(o) {
			kept = append(kept, o)
		}
	}
	return s.Replace(kept, "1")
}

func namesIn[T any](s *store[T]) []string {
	all, _ := s.all()
	var names []string
	for k := range all {
		names = append(names, k.Name)
	}
	slices.Sort(names)
	return names
}

// newTestLocal returns stores that have listed the export shop/web.
func newTestLocal(t *testing.T) *Inventory {
	l := New(slog.New(slog.DiscardHandler), func() {})
	list(t, l.exports, named("web", nil))
	l.wanted.begin()
	return l
}

// Of a cluster with many Services, only those that are exported are kept, those of imports, and the
// names that imports need.
func TestOnlyExportedServicesAreKept(t *testing.T) {
	l := newTestLocal(t)
	foreign := mirror.DerivedName("foreign")
	list(t, l.services, serviceObject("web", nil), serviceObject("other", nil),
		serviceObject("mine", ours()), serviceObject(foreign, nil))
	list(t, l.slices, sliceObject("web-1", "web", 1), sliceObject("other-1", "other", 1),
		sliceObject("alone", "", 1))
	errtest.Must(t, l.services.Add(serviceObject("later", nil)))
	errtest.Must(t, l.slices.Add(sliceObject("web-2", "web", 1)))

	if got := namesIn(l.services); !slices.Equal(got, []string{foreign, "mine", "web"}) {
		t.Errorf("Services %q", got)
	}
	services, _ := l.services.all()
	for name, ports := range map[string]int{foreign: 0, "mine": 1, "web": 1} {
		if got := services[record.Key{Namespace: "shop", Name: name}].Spec.Ports; len(got) != ports {
			t.Errorf("%s has the ports %v", name, got)
		}
	}
	if got := namesIn(l.slices); !slices.Equal(got, []string{"web-1", "web-2"}) {
		t.Errorf("EndpointSlices %q", got)
	}
	if unread := l.wanted.unreadNow(); len(unread) > 0 {
		t.Errorf("unread %v", unread)
	}
	errtest.Must(t, l.exports.Delete(named("web", nil)))
	if a, b := namesIn(l.services), namesIn(l.slices); len(a) != 2 || len(b) > 0 {
		t.Errorf("without the export: Services %q, EndpointSlices %q", a, b)
	}
}

// An EndpointSlice is our own by the label of EndpointSlices only, as the admission policy has it.
func TestSliceWithTheLabelOfServicesIsForeign(t *testing.T) {
	l := newTestLocal(t)
	tenants, mine := sliceObject("tenants", "web", 2), sliceObject("mine", "other", 1)
	tenants.Labels[mirror.ManagedByLabel] = mirror.ManagedBy
	mine.Labels[discoveryv1.LabelManagedBy] = mirror.ManagedBy
	stray := named("stray", ours())
	list(t, l.slices, tenants, mine, stray)
	if got := namesIn(l.slices); !slices.Equal(got, []string{"mine", "tenants"}) {
		t.Errorf("EndpointSlices %q", got)
	}
	all, _ := l.slices.all()
	for k, e := range all {
		if e.Ours != (k.Name == "mine") || (l.slices.limits.weight(e) == 0) != e.Ours {
			t.Errorf("%s is ours: %v", k, e.Ours)
		}
	}
}

// later is an API server that has the Service shop/later and the EndpointSlice later-1 of it.
func later(w http.ResponseWriter, q *http.Request) { laterWith("later-1")(w, q) }

// laterWith is later with an EndpointSlice of this name.
func laterWith(slice string) http.HandlerFunc {
	return func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case q.URL.Path == "/api/v1/namespaces/shop/services" &&
			q.FormValue("fieldSelector") == "metadata.name=later":
			fmt.Fprint(w, `{"kind":"ServiceList","apiVersion":"v1","metadata":`+
				`{"resourceVersion":"7"},"items":[{"metadata":{"namespace":"shop","name":"later",`+
				`"resourceVersion":"6"},"spec":{"ports":[{"port":80}]}}]}`)
		case q.URL.Path == "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices" &&
			q.FormValue("labelSelector") == "kubernetes.io/service-name=later":
			fmt.Fprintf(w, `{"kind":"EndpointSliceList","apiVersion":"discovery.k8s.io/v1",`+
				`"metadata":{"resourceVersion":"7"},"items":[{"metadata":{"namespace":"shop",`+
				`"name":%q,"resourceVersion":"6","labels":{"kubernetes.io/service-name":"later"}},`+
				`"addressType":"IPv4","endpoints":`+oneEndpoint+`,"ports":[{"port":80}]}]}`, slice)
		default:
			http.Error(w, q.URL.String(), http.StatusNotFound)
		}
	}
}

// serve returns a client of an API server that ends with the test.
func serve(t *testing.T, h http.HandlerFunc) *api.Server {
	t.Helper()
	at := httptest.NewServer(h)
	t.Cleanup(at.Close)
	server, err := api.New(&rest.Config{Host: at.URL}, nil)
	errtest.Must(t, err)
	return server
}

// A service that is exported after the lists is read. A list that began before lacks it, and does
// not remove it.
func TestServiceThatIsExportedLaterIsRead(t *testing.T) {
	server := serve(t, later)
	l := newTestLocal(t)
	list(t, l.services, serviceObject("web", nil))
	began := l.services.BeginList()
	k := record.Key{Namespace: "shop", Name: "later"}
	errtest.Must(t, l.exports.Add(named("later", nil)))
	if unread := slices.Collect(maps.Keys(l.wanted.unreadNow())); !slices.Equal(unread,
		[]record.Key{k}) {
		t.Fatalf("unread %v", unread)
	}

	errtest.Must(t, l.fetch(t.Context(), server, k))
	check := func(situation string) {
		t.Helper()
		a, b := namesIn(l.services), namesIn(l.slices)
		if !slices.Equal(a, []string{"later", "web"}) || !slices.Equal(b, []string{"later-1"}) {
			t.Errorf("%s: Services %q, EndpointSlices %q", situation, a, b)
		}
	}
	check("read")
	if unread := l.wanted.unreadNow(); len(unread) > 0 {
		t.Errorf("unread %v", unread)
	}
	web := serviceObject("web", nil)
	began(web)
	errtest.Must(t, l.services.Replace([]any{web}, "5"))
	check("after the list")
	if _, unread := l.wanted.unreadNow()[k]; !unread {
		t.Error("it is not read again")
	}
}

// What is deleted or changed while a service is read counts more than what is read.
func TestEventsCountMoreThanAReading(t *testing.T) {
	l := newTestLocal(t)
	errtest.Must(t, l.exports.Add(named("later", nil)))
	server := serve(t, func(w http.ResponseWriter, q *http.Request) {
		_ = l.slices.Delete(sliceObject("later-1", "later", 1)) // neither returns an error
		_ = l.slices.Add(sliceObject("later-2", "later", 1))
		later(w, q)
	})
	errtest.Must(t, l.fetch(t.Context(), server, record.Key{Namespace: "shop", Name: "later"}))
	if got := namesIn(l.slices); !slices.Equal(got, []string{"later-2"}) {
		t.Errorf("EndpointSlices %q", got)
	}
}

// Lists and events that come while a service is read leave the objects that the API server has, or
// the service is read again.
func TestChangesDuringARead(t *testing.T) {
	k := record.Key{Namespace: "shop", Name: "later"}
	export := named("later", nil)
	for name, c := range map[string]struct {
		before, during func(*Inventory) error // during is called once, in the read of EndpointSlices
		second         string                 // what the API server has after during
		want           []string               // the EndpointSlices
		unread         bool
	}{
		"a newer list": {during: func(l *Inventory) error {
			return replace(l.slices, sliceObject("later-2", "later", 1))
		}, second: "later-2", want: []string{"later-2"}},
		"an older list of Services": {before: func(l *Inventory) error {
			l.services.BeginList()
			return errors.Join(l.exports.Delete(export), l.exports.Add(named("later", nil)))
		}, during: func(l *Inventory) error {
			return l.services.Replace(nil, "5")
		}, second: "later-1", want: []string{"later-1"}, unread: true},
		"the export is deleted": {during: func(l *Inventory) error {
			return l.exports.Delete(export)
		}, second: "later-1"},
		"the export is made again": {during: func(l *Inventory) error {
			return errors.Join(l.exports.Delete(export), l.exports.Add(named("later", nil)))
		}, second: "later-1", want: []string{"later-1"}, unread: true},
	} {
		t.Run(name, func(t *testing.T) {
			l := newTestLocal(t)
			errtest.Must(t, l.exports.Add(named("later", nil)))
			if c.before != nil {
				errtest.Must(t, c.before(l))
			}
			slice, called := "later-1", false
			server := serve(t, func(w http.ResponseWriter, q *http.Request) {
				now := slice
				if strings.HasSuffix(q.URL.Path, "/endpointslices") && !called {
					called, slice = true, c.second
					errtest.Check(t, c.during(l))
				}
				laterWith(now)(w, q)
			})

			errtest.Must(t, l.fetch(t.Context(), server, k))
			if got := namesIn(l.slices); !slices.Equal(got, c.want) {
				t.Errorf("EndpointSlices %q, want %q", got, c.want)
			}
			if _, unread := l.wanted.unreadNow()[k]; unread != c.unread {
				t.Errorf("it is read again: %v", unread)
			}
		})
	}
}

// An event of a service that is exported at the same moment does not hide what is read then.
func TestEventDuringAnExport(t *testing.T) {
	l := newTestLocal(t)
	reached, ended := make(chan struct{}), make(chan struct{})
	server := serve(t, func(w http.ResponseWriter, q *http.Request) {
		if strings.HasSuffix(q.URL.Path, "/services") {
			close(reached)
			<-ended
		}
		later(w, q)
	})
	fetched := make(chan error, 1)
	kept := l.services.limits.kept
	l.services.limits.kept = func(o *object.Object) bool {
		is := kept(o)
		l.services.limits.kept = kept
		errtest.Check(t, l.exports.Add(named("later", nil)))
		go func() {
			fetched <- l.fetch(t.Context(), server, record.Key{Namespace: "shop", Name: "later"})
		}()
		if l.services.mu.TryLock() { // The read can begin before the event is stored.
			l.services.mu.Unlock()
			<-reached
		}
		return is
	}

	errtest.Must(t, l.services.Add(serviceObject("later", nil)))
	close(ended)
	errtest.Must(t, <-fetched)
	if got := namesIn(l.services); !slices.Equal(got, []string{"later"}) {
		t.Errorf("Services %q", got)
	}
}

// A Service with the name of a derived one is kept without its content until it is exported.
func TestExportedServiceWithTheNameOfADerivedOne(t *testing.T) {
	l := newTestLocal(t)
	name := mirror.DerivedName("web")
	list(t, l.services, serviceObject(name, nil))
	errtest.Must(t, l.exports.Add(named(name, nil)))
	server := serve(t, func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"kind":"List","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[`+
			`{"metadata":{"namespace":"shop","name":%q,"resourceVersion":"1"},`+
			`"spec":{"ports":[{"port":80}]}}]}`, name)
	})
	k := record.Key{Namespace: "shop", Name: name}
	errtest.Must(t, l.services.read(t.Context(), server, object.AllServices.In("shop"), k))
	all, _ := l.services.all()
	if len(all[k].Spec.Ports) != 1 {
		t.Errorf("%+v", all[k])
	}
}

// A namespace with too many endpoints costs itself only, and what is left out is counted.
func TestEndpointsOfANamespaceAreBounded(t *testing.T) {
	l := newTestLocal(t)
	const each = 1000
	for i := range MaxWeight/each + 3 {
		errtest.Must(t, l.slices.Add(sliceObject(fmt.Sprint("web-", i), "web", each)))
	}
	if n, left := len(namesIn(l.slices)), beyond(l.slices); n != MaxWeight/(each+1) ||
		n+left != MaxWeight/each+3 {
		t.Errorf("%d EndpointSlices are kept, %d are left out", n, left)
	}
	last := sliceObject(fmt.Sprint("web-", MaxWeight/each+2), "web", each)
	for range 3 { // Events of an object count once.
		errtest.Must(t, l.slices.Add(last.DeepCopyObject()))
	}
	if left := beyond(l.slices); left != 4 {
		t.Errorf("%d are left out after more events", left)
	}

	errtest.Must(t, l.slices.Delete(sliceObject("web-0", "web", each)))
	errtest.Must(t, l.slices.Delete(last))
	errtest.Must(t, l.slices.Add(sliceObject("new", "web", each)))
	if got := namesIn(l.slices); !slices.Contains(got, "new") || beyond(l.slices) != 3 {
		t.Errorf("after deletions %d are left out of %q", beyond(l.slices), got)
	}
	errtest.Must(t, l.exports.Delete(named("web", nil)))
	if left := beyond(l.slices); left != 0 {
		t.Errorf("%d are left out without an export", left)
	}
}
