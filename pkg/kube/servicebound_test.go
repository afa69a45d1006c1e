package kube

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/kube/wire"
	"github.com/kubeveil/kubeveil/pkg/service"
)

// smallRoom is a table of which one namespace may take 4,096 frontends or 1,024 backends.
var smallRoom = service.Limits{Frontends: 8192, BackendSlots: 8192, Members: 8192,
	SourceRanges: 2048}

// wideService has 512 ports; wideSlice has 128 endpoints.
func wideService(name string) map[string]any {
	o := serviceObject(name, 1)
	var ports []any
	for i := range 512 {
		ports = append(ports, map[string]any{"name": fmt.Sprint("p", i), "port": i + 1})
	}
	o["spec"].(map[string]any)["ports"] = ports
	return o
}

func wideSlice(name string) map[string]any {
	o := sliceObject(name, "web", "198.18.1.1")
	var endpoints []any
	for i := range 128 {
		endpoints = append(endpoints, map[string]any{
			"addresses": []any{fmt.Sprint("198.18.1.", i+1)}})
	}
	o["endpoints"] = endpoints
	return o
}

// A namespace that asks for more than its share of the table loses its last objects by name, gets
// them back when it asks for less, and costs no other namespace anything.
func TestServicesOfANamespaceAreBounded(t *testing.T) {
	for name, kind := range map[string]struct {
		path, object string
		wide         func(name string) map[string]any
	}{
		"services": {servicesPath, "Service", wideService},
		"slices":   {allSlicesPath, "EndpointSlice", wideSlice},
	} {
		for _, old := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/without protobuf and streams %t", name, old), func(t *testing.T) {
				f := newFakeServer(t)
				f.noProto, f.noStream = old, old
				testBoundedServices(t, f, kind.path, kind.object, kind.wide)
			})
		}
	}
}

// numberedNames returns names from first to last.
func numberedNames(first, last int) (names []string) {
	for i := first; i <= last; i++ {
		names = append(names, fmt.Sprint("evil-", i))
	}
	return names
}

func testBoundedServices(t *testing.T, f *fakeServer, path, kind string,
	wide func(name string) map[string]any) {
	put := func(namespace, name string) {
		o := wide(name)
		o["metadata"].(map[string]any)["namespace"] = namespace
		f.put(path, o)
	}
	put("good", "good")
	for _, name := range numberedNames(0, 9) {
		put("evil", name)
	}

	c, sink := startServices(t, f)
	passed := func(want ...string) func() bool {
		return func() bool { return slices.Equal(sink.names(kind), want) }
	}
	left := func(count int) {
		t.Helper()
		want := []service.LeftOut{{Kind: kind, Namespace: "evil", Count: count}}
		begins, ends := kind+"s of namespace evil: ", fmt.Sprintf(", %d now)", count)
		nettest.Until(t, 10*time.Second, fmt.Sprint("left out: ", count), func() bool {
			problems := c.Problems()
			return slices.Equal(c.LeftOut(), want) && len(problems) == 1 &&
				strings.HasPrefix(problems[0], begins) && strings.HasSuffix(problems[0], ends)
		})
	}

	eight := numberedNames(0, 7)
	sink.wait(t, "the last are left out", passed(append(eight, "good")...))
	left(2)

	put("evil", "evil-x")
	put("other", "late")
	sink.wait(t, "another namespace has one more", passed(append(eight, "good", "late")...))
	left(3)

	put("evil", "evil-00")
	sink.wait(t, "a former one by name puts the last out", passed(append([]string{"evil-0",
		"evil-00"}, append(numberedNames(1, 6), "good", "late")...)...))
	left(4)

	f.remove(path, "evil-00")
	sink.wait(t, "the first that was left out fits", passed(append(eight, "good", "late")...))
	left(3)

	f.setAway(true)
	f.remove(path, "evil-9")
	f.remove(path, "evil-x")
	f.setAway(false)
	left(1)

	for _, name := range numberedNames(1, 7) {
		f.remove(path, name)
	}
	sink.wait(t, "all fit", passed("evil-0", "evil-8", "good", "late"))
	nettest.Until(t, 10*time.Second, "no problem", func() bool {
		return len(c.Problems()) == 0 && len(c.LeftOut()) == 0
	})
}

func startServices(t *testing.T, f *fakeServer) (*Client, *tellTale) {
	t.Helper()
	c, err := newClient(Options{Node: "node-1"}, f.config())
	if err != nil {
		t.Fatal(err)
	}
	c.times = quick
	sink := &tellTale{services: map[service.Name]service.Service{},
		slices: map[string]service.Slice{}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.RunServices(ctx, smallRoom, sink) }()
	t.Cleanup(func() { cancel(); <-done })
	return c, sink
}

// names returns the objects of a kind that were passed on; the caller holds mu.
func (s *tellTale) names(kind string) []string {
	var all []string
	for n, v := range s.services {
		if kind == "Service" && len(v.Ports) == 512 {
			all = append(all, n.Name)
		}
	}
	for _, v := range s.slices {
		if kind == "EndpointSlice" && len(v.Endpoints) == 128 {
			all = append(all, v.Name)
		}
	}
	slices.Sort(all)
	return all
}

// plainService is a Service of both families as it was read.
func plainService(namespace string, i int) *object {
	return &object{ObjectMeta: metav1.ObjectMeta{Namespace: namespace,
		Name: fmt.Sprintf("s%06d", i), ResourceVersion: fmt.Sprint(i)},
		content: &wire.Service{ClusterIPs: []string{
			netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}).String(), "fd42::1"},
			Ports: []wire.ServicePort{{Protocol: "TCP", Port: 80}}}}
}

// countingFeed is a feed of Services that counts what it passes on, by namespace.
func countingFeed(room service.Limits) (f *feed[service.Service], passed map[string]int) {
	c := &Client{problems: map[string]string{}, log: slog.New(slog.DiscardHandler)}
	passed = map[string]int{}
	f = newFeed(c, "Service ", parseService, func(s service.Service) any { return s.Name },
		func(s service.Service) { passed[s.Name.Namespace]++ },
		func(s service.Service) { passed[s.Name.Namespace]-- }, func() {})
	boundServices(f, room)
	return f, passed
}

// A tenant makes 300,000 Services: what each node keeps is what it keeps of a full share, and
// another namespace gets its Service.
func TestTenantWithManyServicesCostsItself(t *testing.T) {
	const many, fit = 300_000, 16_384 // a quarter of 262,144 frontends, each counts four
	f, passed := countingFeed(service.DefaultLimits)
	before := int64(memory().HeapAlloc)
	began := time.Now()
	var full int64
	for i := range many {
		if err := f.Add(plainService("evil", i*7919%many)); err != nil { // in any order
			t.Fatal(err)
		}
		if i == fit {
			full = int64(memory().HeapAlloc) - before
		}
	}
	if err := f.Add(plainService("good", 1)); err != nil {
		t.Fatal(err)
	}
	kept := int64(memory().HeapAlloc) - before
	t.Logf("%d services: %v, %d KiB of heap, %d KiB with a full share", many, time.Since(began),
		kept>>10, full>>10)
	if want := map[string]int{"evil": fit, "good": 1}; !maps.Equal(passed, want) {
		t.Errorf("passed on %v, want %v", passed, want)
	}
	if kept > full*3/2 || full > 32<<20 {
		t.Errorf("%d bytes of heap, %d with a full share: want little more, and 32 MiB at most",
			kept, full)
	}
	want := []service.LeftOut{{Kind: "Service", Namespace: "evil", Count: many - fit}}
	if got := f.client.LeftOut(); !slices.Equal(got, want) || len(f.client.Problems()) != 1 {
		t.Errorf("left out %v, want %v; problems %q", got, want, f.client.Problems())
	}

	for i := range many {
		if err := f.Delete(plainService("evil", i)); err != nil {
			t.Fatal(err)
		}
	}
	if left := f.client.LeftOut(); len(left) > 0 || passed["evil"] > 0 || len(f.room.wake) == 0 {
		t.Errorf("all deleted: left out %v, passed on %v; no list is asked for", left, passed)
	}
	relist(t, f, plainService("good", 1))
	if len(f.client.Problems()) > 0 || len(f.room.spaces) != 1 {
		t.Errorf("after a list: problems %q, %d namespaces", f.client.Problems(),
			len(f.room.spaces))
	}
	runtime.KeepAlive(f)
}

// Malformed objects cost a line in status each: a namespace has a bound of these too.
func TestMalformedServicesAreBounded(t *testing.T) {
	c := &Client{problems: map[string]string{}, log: slog.New(slog.DiscardHandler)}
	f := newFeed(c, "EndpointSlice ", parseEndpoints, func(s service.Slice) any { return s.Service },
		func(service.Slice) {}, func(service.Slice) {}, func() {})
	boundSlices(f, smallRoom)
	for i := range 1000 {
		if err := f.Add(&object{ObjectMeta: metav1.ObjectMeta{Namespace: "evil",
			Name: fmt.Sprint("s", i), Labels: map[string]string{serviceNameLabel: "web"}},
			content: &wire.EndpointSlice{Excess: true}}); err != nil {
			t.Fatal(err)
		}
	}
	const fit = 1024 / malformedElements
	if got := c.Problems(); len(got) != fit+1 ||
		!slices.Equal(c.LeftOut(), []service.LeftOut{
			{Kind: "EndpointSlice", Namespace: "evil", Count: 1000 - fit}}) {
		t.Errorf("%d problems, want %d; left out %v", len(got), fit+1, c.LeftOut())
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
