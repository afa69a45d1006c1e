package planner

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/service"
)

// many returns services with different endpoints, in slices of a hundred.
func many(services, endpoints int) ([]service.Service, []service.Slice) {
	var all []service.Service
	var slices []service.Slice
	pod := netip.MustParseAddr("198.18.0.0")
	for i := range services {
		n := service.Name{Namespace: fmt.Sprintf("namespace-%d", i%50),
			Name: fmt.Sprintf("service-%d", i)}
		all = append(all, service.Service{
			Name: n, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{198, 19, byte(i >> 8),
				byte(i)})}, Ports: []service.Port{{Name: "http", Protocol: service.TCP, Port: 80,
				NodePort: 0}},
		})
		for first := 0; first < endpoints; first += 100 {
			s := service.Slice{Service: n, Name: fmt.Sprint(first),
				Ports: []service.SlicePort{{Name: "http", Protocol: service.TCP, Port: 8080}}}
			for range min(100, endpoints-first) {
				pod = pod.Next()
				s.Endpoints.Append(service.Endpoint{Addr: pod, Node: "node-1", Ready: true,
					Serving: true})
			}
			slices = append(slices, s)
		}
	}
	return all, slices
}

func filled(b *testing.B, services []service.Service, slices []service.Slice) (*Planner, int) {
	b.Helper()
	p, err := New("node-1", service.DefaultLimits)
	errtest.Must(b, err)
	for _, s := range services {
		p.PutService(s)
	}
	for _, s := range slices {
		p.PutSlice(s)
	}
	slots := 0
	for again := true; again; {
		c := p.Plan()
		again, slots = c.Again, slots+c.Slots()
	}
	if len(p.Problems()) > 0 {
		b.Fatal(p.Problems()[0])
	}
	return p, slots
}

// BenchmarkPlanAll measures the plan at a node's start, from the decoded list to all changes.
func BenchmarkPlanAll(b *testing.B) {
	for _, size := range []struct{ services, endpoints int }{{1000, 10}, {10_000, 10}, {30_000, 3},
		{1, 100_000}} {
		b.Run(fmt.Sprintf("%d services with %d endpoints", size.services, size.endpoints),
			func(b *testing.B) {
				services, slices := many(size.services, size.endpoints)
				for b.Loop() {
					if _, n := filled(b, services, slices); n != size.services*size.endpoints {
						b.Fatalf("%d slots", n)
					}
				}
			})
	}
}

// BenchmarkPlanOneBesideFull is BenchmarkPlanOne while some services of many endpoints do not fit.
func BenchmarkPlanOneBesideFull(b *testing.B) {
	p, err := New("node-1", service.Limits{Frontends: 1 << 15, BackendSlots: 1 << 18,
		SourceRanges: 1 << 10})
	errtest.Must(b, err)

	services, endpoints := many(10_000, 10)
	whole := endpoints[5000]
	less := whole
	less.Endpoints = withoutFirst(whole.Endpoints)

	large, parts := many(20, 10_000)
	for i := range large {
		large[i].Name.Name += "-large"
	}

	for i := range parts {
		parts[i].Service.Name += "-large"
	}

	for _, s := range append(services, large...) {
		p.PutService(s)
	}

	for _, s := range append(endpoints, parts...) {
		p.PutSlice(s)
	}

	plan := func() {
		for again := true; again; {
			again = p.Plan().Again
		}
	}
	if plan(); len(p.waiting) == 0 {
		b.Fatal("all fit")
	}

	for i := 0; b.Loop(); i++ {
		p.PutSlice([]service.Slice{less, whole}[i%2])
		plan()
	}
}

// BenchmarkPlanOne measures the plan after one endpoint was added or removed, from the event to its
// changes.
func BenchmarkPlanOne(b *testing.B) {
	for _, size := range []struct{ services, endpoints int }{{10_000, 10}, {1000, 1000},
		{1, 100_000}} {
		b.Run(fmt.Sprintf("%d services with %d endpoints", size.services, size.endpoints),
			func(b *testing.B) {
				services, slices := many(size.services, size.endpoints)
				p, _ := filled(b, services, slices)
				whole := slices[len(slices)/2]
				less := whole
				less.Endpoints = withoutFirst(whole.Endpoints)
				for i := 0; b.Loop(); i++ {
					p.PutSlice([]service.Slice{less, whole}[i%2])
					if c := p.Plan(); len(c.Frontends.Keys) != 1 {
						b.Fatalf("%d frontends", len(c.Frontends.Keys))
					}
				}
			})
	}
}

// withoutFirst returns a list without its first endpoint.
func withoutFirst(l service.Endpoints) service.Endpoints {
	return service.EndpointsOf(slices.Collect(l.All())[1:]...)
}
