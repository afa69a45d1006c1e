package bpfmaps

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/planner"
)

// many returns services with different endpoints, each with one slice and one port of the protocol.
func many(services, endpoints int, protocol service.Protocol) ([]service.Service, []service.Slice) {
	var all []service.Service
	var slices []service.Slice
	pod := netip.MustParseAddr("198.18.0.0")
	for i := range services {
		name := service.Name{Namespace: fmt.Sprintf("namespace-%d", i%50),
			Name: fmt.Sprintf("service-%d", i)}
		addr := netip.AddrFrom4([4]byte{198, 19, byte(i >> 8), byte(i)})
		all = append(all, service.Service{Name: name, ClusterIPs: []netip.Addr{addr},
			Ports: []service.Port{{Name: "main", Protocol: protocol, Port: 80}}})
		s := service.Slice{Service: name, Name: "1",
			Ports: []service.SlicePort{{Name: "main", Protocol: protocol, Port: 8080}}}
		for range endpoints {
			pod = pod.Next()
			s.Endpoints.Append(service.Endpoint{Addr: pod, Node: "node-1",
				Ready: true, Serving: true})
		}
		slices = append(slices, s)
	}
	return all, slices
}

func benchConfig(b *testing.B) Config {
	c := config(b)
	c.Limits, c.Memory = service.DefaultLimits, Memory{}
	return c
}

// BenchmarkAll measures the time from decoded lists to a usable table. It reports the written
// entries.
func BenchmarkAll(b *testing.B) {
	for _, protocol := range []service.Protocol{service.TCP, service.UDP} {
		for _, size := range []struct{ services, endpoints int }{{1000, 10}, {10_000, 10},
			{10, 10_000}} {
			b.Run(fmt.Sprintf("%s, %d services with %d endpoints", protocol, size.services,
				size.endpoints), func(b *testing.B) {
				services, slices := many(size.services, size.endpoints, protocol)
				fill := func(p *planner.Planner) {
					for _, s := range services {
						p.PutService(s)
					}
					for _, s := range slices {
						p.PutSlice(s)
					}
				}

				var writing time.Duration
				entries := 0
				for b.Loop() {
					b.StopTimer()
					n := start(b, benchConfig(b), func(*planner.Planner) {})
					b.StartTimer()
					fill(n.Planner)
					for again := true; again; {
						c := n.Plan()
						from := time.Now()
						errtest.Must(b, n.Apply(c))
						writing += time.Since(from)
						entries += c.Writes()
						again = c.Again
					}
					b.StopTimer()
					n.Close()
					b.StartTimer()
				}

				b.ReportMetric(float64(writing.Nanoseconds())/float64(entries), "ns/entry")
				b.ReportMetric(float64(entries)/float64(b.N), "entries")
			})
		}
	}
}

// BenchmarkOne measures the time from the event that an endpoint was added or removed to the
// changed table.
func BenchmarkOne(b *testing.B) {
	for _, size := range []struct{ services, endpoints int }{{10_000, 10}, {100, 1000},
		{1, 100_000}} {
		b.Run(fmt.Sprintf("%d services with %d endpoints", size.services, size.endpoints),
			func(b *testing.B) {
				services, whole := many(size.services, size.endpoints, service.TCP)
				lists := parted(whole)
				n := start(b, benchConfig(b), func(p *planner.Planner) {
					for _, s := range services {
						p.PutService(s)
					}
					for _, s := range lists {
						p.PutSlice(s)
					}
				})

				var took []time.Duration
				for i := 0; b.Loop(); i++ {
					s := lists[i/2%len(lists)]
					if i%2 == 0 {
						s.Endpoints = service.EndpointsOf(slices.Collect(s.Endpoints.All())[1:]...)
					}
					from := time.Now()
					n.PutSlice(s)
					c := n.Plan()
					if err := n.Apply(c); err != nil || len(c.Frontends.Keys) != 1 {
						b.Fatalf("%d frontends, %v", len(c.Frontends.Keys), err)
					}
					took = append(took, time.Since(from))
				}

				slices.Sort(took)
				b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds()), "p99-ns")
				b.ReportMetric(float64(took[len(took)-1].Nanoseconds()), "max-ns")
			})
	}
}

// BenchmarkRestart measures reading the table back, up to an empty plan.
func BenchmarkRestart(b *testing.B) {
	services, lists := many(10_000, 10, service.UDP)
	fill := func(p *planner.Planner) {
		for i, s := range services {
			p.PutService(s)
			p.PutSlice(lists[i])
		}
	}
	n := start(b, benchConfig(b), fill)
	for b.Loop() {
		p, err := planner.New("node-1", n.limits)
		errtest.Must(b, err)
		again := node{n.Table, p}
		again.adopt(b)
		fill(p)
		if writes := again.apply(b); writes > 0 {
			b.Fatalf("%d writes", writes)
		}
	}
}
