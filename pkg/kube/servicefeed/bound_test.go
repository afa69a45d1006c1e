package servicefeed

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/kube/api"
	"github.com/kubeveil/kubeveil/pkg/kube/feed"
	"github.com/kubeveil/kubeveil/pkg/kube/kubetest"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
	"github.com/kubeveil/kubeveil/pkg/kube/wire"
	"github.com/kubeveil/kubeveil/pkg/service"
)

// smallRoom is a table of which one namespace may take 4,096 frontends or 1,024 backends.
var smallRoom = service.Limits{Frontends: 8192, BackendSlots: 8192,
	SourceRanges: 2048}

// plainService is a Service of both families as it was read.
func plainService(namespace string, i int) *object.Object {
	return &object.Object{ObjectMeta: metav1.ObjectMeta{Namespace: namespace,
		Name: fmt.Sprintf("s%06d", i), ResourceVersion: fmt.Sprint(i)},
		Content: &wire.Service{ClusterIPs: []string{
			netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}).String(), "fd42::1"},
			Ports: []wire.ServicePort{{Protocol: "TCP", Port: 80}}}}
}

// counting is a feed of Services that counts what it passes on, by namespace.
type counting struct {
	*feed.Feed[service.Service]
	left   Left
	passed map[string]int
}

func newCounting(room service.Limits) *counting {
	c := &counting{passed: map[string]int{}}
	c.Feed = &feed.Feed[service.Service]{What: "Service",
		Server: &api.Server{Log: slog.New(slog.DiscardHandler)},
		Owner:  func(s service.Service) any { return s.Name },
		Put:    func(s service.Service) { c.passed[s.Name.Namespace]++ },
		Drop:   func(s service.Service) { c.passed[s.Name.Namespace]-- }}
	boundServices(c.Feed, room, &c.left)
	return c
}

// relist passes a list to a feed as the reflector does.
func relist(t *testing.T, f *counting, objects ...*object.Object) {
	t.Helper()
	keeps := f.BeginList()
	var list []any
	for _, o := range objects {
		if keeps(o) {
			list = append(list, o)
		}
	}
	errtest.Must(t, f.Replace(list, "1"))
}

// If objects were deleted while no watch ran, the next list frees their share and clears the
// problems of malformed objects.
func TestListForgetsWhatItLacks(t *testing.T) {
	f := newCounting(smallRoom)
	var all []*object.Object
	for i := range 2000 { // 1,024 fit
		all = append(all, plainService("evil", i))
	}
	malformed := plainService("bad", 1)
	malformed.Content.(*wire.Service).Ports[0].Port = 70000
	relist(t, f, append(all, malformed)...)
	if f.passed["evil"] != 1024 || len(f.Server.Problems()) != 2 ||
		!slices.Equal(f.left.All(), []service.LeftOut{
			{Kind: "Service", Namespace: "evil", Count: 976}}) {
		t.Fatalf("passed on %v, left out %v, problems %q", f.passed, f.left.All(),
			f.Server.Problems())
	}

	// One of the objects of this list was deleted before the list had ended.
	keeps := f.BeginList()
	for i := range 2 {
		if !keeps(plainService("evil", i+1)) {
			t.Fatal(i)
		}
	}
	if err := f.Replace([]any{plainService("evil", 1)}, "2"); err != nil {
		t.Fatal(err)
	}
	if f.passed["evil"] != 1 || len(f.Server.Problems()) > 0 || len(f.left.All()) > 0 {
		t.Errorf("passed on %v, left out %v, problems %q", f.passed, f.left.All(),
			f.Server.Problems())
	}
	for i := range 1023 {
		errtest.Must(t, f.Add(plainService("evil", 3000+i)))
	}
	if f.passed["evil"] != 1024 || len(f.left.All()) > 0 {
		t.Errorf("the room is taken: passed on %v, left out %v", f.passed, f.left.All())
	}
}

func serviceObject(name, clusterIP string) map[string]any {
	return map[string]any{"metadata": map[string]any{"name": name, "namespace": "shop"},
		"spec": map[string]any{"type": "ClusterIP", "clusterIP": clusterIP,
			"ports": []any{map[string]any{"port": 80, "protocol": "TCP"}}}}
}

// A list holds only what is kept while it is read, over all its pages. Objects with nothing to pass
// on are not held either.
func TestListHoldsOnlyWhatIsKept(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page := r.URL.Query().Get("continue")
		var items []any
		for i := range 1000 {
			items = append(items, serviceObject(fmt.Sprintf("s%s-%04d", page, i), "198.18.128.10"),
				serviceObject(fmt.Sprintf("headless%s-%04d", page, i), "None"))
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "ServiceList", "apiVersion": "v1",
			"metadata": map[string]any{"resourceVersion": "1"}, "items": items})
	}))
	t.Cleanup(s.Close)

	server, err := api.New(&rest.Config{Host: s.URL}, nil)
	errtest.Must(t, err)

	list := server.Lister(object.Services, newCounting(smallRoom))
	for page, want := range []int{1000, 24, 0} {
		o := metav1.ListOptions{}
		if page > 0 {
			o.Continue = fmt.Sprint(page)
		}
		l, err := list(t.Context(), o)
		errtest.Must(t, err)
		if got := meta.LenList(l); got != want {
			t.Errorf("page %d: %d items, want %d", page, got, want)
		}
	}
}

// If one object alone exceeds the share of its namespace, only that object is left out.
func TestServiceBeyondItsShareIsLeftOutAlone(t *testing.T) {
	f := newCounting(smallRoom)
	large := plainService("shop", 0)
	w := large.Content.(*wire.Service)
	for i := range 100 {
		w.ExternalIPs = append(w.ExternalIPs, fmt.Sprint("198.18.200.", i))
		w.Ports = append(w.Ports, wire.ServicePort{Protocol: "TCP", Port: int32(i + 1)})
	}
	relist(t, f, large, plainService("shop", 1), plainService("shop", 2))
	if got := f.Server.Problems(); f.passed["shop"] != 2 || len(got) != 1 ||
		!strings.Contains(got[0], "Service shop/s000000: it needs") {
		t.Errorf("passed on %v, problems %q", f.passed, got)
	}
}

// If a tenant makes 300,000 Services, each node keeps no more than for a full share, and the
// Service of another namespace is still passed on.
func TestTenantWithManyServicesCostsItself(t *testing.T) {
	const many, fit = 300_000, 16_384 // a quarter of 262,144 frontends, each counts four
	f := newCounting(service.DefaultLimits)
	before := int64(kubetest.Memory().HeapAlloc)
	began := time.Now()
	var full int64
	for i := range many {
		if err := f.Add(plainService("evil", i*7919%many)); err != nil { // in any order
			t.Fatal(err)
		}
		if i == fit {
			full = int64(kubetest.Memory().HeapAlloc) - before
		}
	}
	errtest.Must(t, f.Add(plainService("good", 1)))
	kept := int64(kubetest.Memory().HeapAlloc) - before
	t.Logf("%d services: %v, %d KiB of heap, %d KiB with a full share", many, time.Since(began),
		kept>>10, full>>10)
	if want := map[string]int{"evil": fit, "good": 1}; !maps.Equal(f.passed, want) {
		t.Errorf("passed on %v, want %v", f.passed, want)
	}
	if kept > full*3/2 || full > 32<<20 {
		t.Errorf("%d bytes of heap, %d with a full share: want little more, and 32 MiB at most",
			kept, full)
	}
	want := []service.LeftOut{{Kind: "Service", Namespace: "evil", Count: many - fit}}
	if got := f.left.All(); !slices.Equal(got, want) || len(f.Server.Problems()) != 1 {
		t.Errorf("left out %v, want %v; problems %q", got, want, f.Server.Problems())
	}

	for i := range many {
		errtest.Must(t, f.Delete(plainService("evil", i)))
	}
	if left := f.left.All(); len(left) > 0 || f.passed["evil"] > 0 {
		t.Errorf("all deleted: left out %v, passed on %v", left, f.passed)
	}
	relist(t, f, plainService("good", 1))
	if len(f.Server.Problems()) > 0 {
		t.Errorf("after a list: problems %q", f.Server.Problems())
	}
	runtime.KeepAlive(f)
}

// The values of the first list are passed on while it is read, and those that exceed the share of
// their namespace are dropped again. A later list is passed on at its end.
func TestFirstListIsPassedOnEarly(t *testing.T) {
	f := newCounting(smallRoom)
	f.Early = true
	keeps, list := f.BeginList(), []any{}
	for i := range 1100 { // 1,024 fit
		if o := plainService("shop", 2000-i); keeps(o) {
			list = append(list, o)
		}
	}
	if f.passed["shop"] != 1024 {
		t.Errorf("%d passed on before the end of the list, want 1024", f.passed["shop"])
	}
	if err := f.Replace(list, "1"); err != nil || f.passed["shop"] != 1024 {
		t.Errorf("%d passed on: %v", f.passed["shop"], err)
	}

	if keeps := f.BeginList(); !keeps(plainService("other", 1)) || f.passed["other"] != 0 {
		t.Errorf("%v passed on before the end of a later list", f.passed)
	}
}

// The problems of malformed objects, each of which is a line in the status, are bounded per
// namespace.
func TestMalformedServicesAreBounded(t *testing.T) {
	var left Left
	f := &feed.Feed[service.Slice]{What: "EndpointSlice",
		Server: &api.Server{Log: slog.New(slog.DiscardHandler)}}
	boundSlices(f, smallRoom, &left)
	for i := range 1000 {
		if err := f.Add(&object.Object{ObjectMeta: metav1.ObjectMeta{Namespace: "evil",
			Name: fmt.Sprint("s", i), Labels: map[string]string{object.ServiceNameLabel: "web"}},
			Content: &wire.EndpointSlice{Excess: true}}); err != nil {
			t.Fatal(err)
		}
	}
	const fit = 1024 / malformedElements
	if got := f.Server.Problems(); len(got) != fit+1 ||
		!slices.Equal(left.All(), []service.LeftOut{
			{Kind: "EndpointSlice", Namespace: "evil", Count: 1000 - fit}}) {
		t.Errorf("%d problems, want %d; left out %v", len(got), fit+1, left.All())
	}
}

func TestShareOfTheTable(t *testing.T) {
	for size, want := range map[int]int{64: 64, 4096: 4096, 8192: 4096, 1 << 18: 1 << 16} {
		if got := shareOf(size, frontendShare); got != want {
			t.Errorf("share of %d is %d, want %d", size, got, want)
		}
	}

	ip := netip.MustParseAddr("198.18.0.1")
	for _, c := range []struct {
		s    service.Service
		want int
	}{
		{service.Service{}, 1},
		{service.Service{ClusterIPs: []netip.Addr{ip, ip}, Ports: make([]service.Port, 3)}, 6},
		{service.Service{ClusterIPs: []netip.Addr{ip}, ExternalIPs: []netip.Addr{ip},
			LoadBalancerIPs: []netip.Addr{ip}, Ports: []service.Port{{NodePort: 30000}}}, 9},
	} {
		if got := frontendsOf(&c.s); got != c.want {
			t.Errorf("%+v: %d frontends, want %d", c.s, got, c.want)
		}
	}
}
