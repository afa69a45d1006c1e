package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service"
)

// smallRoom is a table of which one namespace may take 4,096 frontends or 1,024 backends.
var smallRoom = service.Limits{Frontends: 8192, BackendSlots: 8192,
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

// If a namespace needs more than its share of the table, its last objects by name are left out.
// They are restored when the namespace needs less. Other namespaces are not affected.
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

	c, sink := startServices(t, f, smallRoom)
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

func startServices(t *testing.T, f *fakeServer, limits service.Limits) (*Client, *tellTale) {
	t.Helper()
	return startSink(t, f, func(ctx context.Context, c *Client, sink *tellTale) error {
		return c.RunServices(ctx, limits, sink)
	})
}

// startSink runs a client of f that passes services to a new tellTale, until the test ends.
func startSink(t *testing.T, f *fakeServer,
	run func(context.Context, *Client, *tellTale) error) (*Client, *tellTale) {
	t.Helper()
	c, err := newClient(ClientConfig{Node: "node-1"}, f.config())
	errtest.Must(t, err)
	quicken(c)
	sink := &tellTale{services: map[service.Name]service.Service{},
		slices: map[string]service.Slice{}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx, c, sink) }()
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
		if kind == "EndpointSlice" && v.Endpoints.Len() == 128 {
			all = append(all, v.Name)
		}
	}
	slices.Sort(all)
	return all
}
