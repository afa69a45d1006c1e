package bpfmaps

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/planner"
	"github.com/kubeveil/kubeveil/pkg/service/slots"
)

// portion returns the factor by which TestManyBackends is smaller than DefaultLimits.
func portion() int {
	if nettest.Long() {
		return 1
	}
	return 16
}

// TestManyBackends fills maps of a sixteenth of DefaultLimits, or of all of them in the long part
// of the lab: 65,536 services with 16 endpoints each, every other one of UDP. That takes 0.8 GB in
// addition to the maps, or 2.7 GB with the race detector.
func TestManyBackends(t *testing.T) {
	nettest.NeedBPF(t)
	portion := portion()
	limits := service.DefaultLimits
	for _, n := range []*uint32{&limits.Frontends, &limits.BackendSlots,
		&limits.SourceRanges} {
		*n /= uint32(portion)
	}
	services, lists := many(1<<16/portion, 16, service.TCP)
	for i := range services {
		if i%2 == 1 {
			services[i].Ports[0].Protocol, lists[i].Ports[0].Protocol = service.UDP, service.UDP
		}
	}
	n := startFull(t, limits, services, lists)
	was := expectHeld(t, n, services, lists)
	if len(was.SourceRanges) != 0 {
		t.Errorf("%d sources, want none", len(was.SourceRanges))
	}
	for i := 0; i < len(services); i += 1009 {
		expectRead(t, n, services[i], lists[i])
	}

	// A service that outgrows the room keeps its entries, and so do all others.
	which, addrs := len(services)/2, 100_000/portion
	for limit, grow := range map[service.FullError]func(*service.Service){
		{Limit: "frontends", Size: limits.Frontends, Want: 2 * addrs}: func(s *service.Service) {
			s.ClusterIPs = nil // else it would be of IPv4 alone
			for a := netip.MustParseAddr("fd42::"); len(s.ExternalIPs) < addrs; {
				a = a.Next()
				s.ExternalIPs = append(s.ExternalIPs, a)
			}
		},
		{Limit: "sourceRanges", Size: limits.SourceRanges,
			Want: int(limits.SourceRanges) + 1}: func(s *service.Service) {
			s.ClusterIPs, s.LoadBalancerIPs = nil, nettest.Addrs("fd42::1")
			for a := netip.MustParseAddr("fd42:9::"); len(
				s.SourceRanges) <= int(limits.SourceRanges); {
				a = a.Next()
				s.SourceRanges = append(s.SourceRanges, netip.PrefixFrom(a, a.BitLen()))
			}
		},
	} {
		t.Run("beyond "+limit.Limit, func(t *testing.T) {
			large := services[which]
			grow(&large)
			n.PutService(large)
			if writes := n.apply(t); writes > 0 {
				t.Errorf("a service beyond limit %s: %d writes", limit.Limit, writes)
			}
			limit.Service = large.Name
			var full *service.FullError
			if problems := n.Problems(); len(problems) != 1 || !errors.As(problems[0], &full) ||
				*full != limit {
				t.Errorf("problems are %v, want %v", problems, &limit)
			}
			expectSame(t, n, was)
			n.PutService(services[which])
			if writes, problems := n.apply(t), n.Problems(); writes > 0 || len(problems) > 0 {
				t.Errorf("back within limit %s: %d writes, problems %v", limit.Limit, writes,
					problems)
			}
		})
	}
}

// TestAServiceOf76500 has a service a hundred times as large as the largest of loxilb's suite
// (tcpepscale), in slices of a hundred endpoints, as Kubernetes makes them.
func TestAServiceOf76500(t *testing.T) {
	nettest.NeedBPF(t)
	const endpoints = 3 * 255 * 100
	services, whole := many(1, endpoints, service.TCP)
	lists := parted(whole)
	limits := service.DefaultLimits
	limits.BackendSlots = 1 << 19
	n := startFull(t, limits, services, lists)
	expectHeld(t, n, services, whole)
	expectRead(t, n, services[0], whole[0])

	// With one endpoint less the service gets a new run of slots, because programs may still read
	// the old run.
	all := slices.Collect(whole[0].Endpoints.All())
	lists[5].Endpoints = service.EndpointsOf(all[500:599]...)
	whole[0].Endpoints = service.EndpointsOf(slices.Delete(all, 599, 600)...)
	n.PutSlice(lists[5])
	if writes := n.apply(t); writes != endpoints {
		t.Errorf("one endpoint less took %d writes, want %d slots and a frontend", writes,
			endpoints-1)
	}
	expectHeld(t, n, services, whole)
}

// parted returns slices with the same endpoints, a hundred in each.
func parted(whole []service.Slice) (lists []service.Slice) {
	for _, s := range whole {
		for part := range slices.Chunk(slices.Collect(s.Endpoints.All()), 100) {
			s.Name, s.Endpoints = fmt.Sprint(len(lists)), service.EndpointsOf(part...)
			lists = append(lists, s)
		}
	}
	return lists
}

// startFull starts a table of these limits with services.
func startFull(t *testing.T, limits service.Limits, services []service.Service,
	lists []service.Slice) node {
	t.Helper()
	c := config(t)
	c.Limits = limits
	n := start(t, c, func(p *planner.Planner) {
		for _, s := range services {
			p.PutService(s)
		}
		for _, s := range lists {
			p.PutSlice(s)
		}
	})
	if problems := n.Problems(); len(problems) > 0 {
		t.Fatalf("%d problems; the first: %v", len(problems), problems[0])
	}
	return n
}

// frontendOf returns the only frontend of a service that many made.
func frontendOf(s service.Service) service.FrontendKey {
	return service.FrontendKey{Addr: s.ClusterIPs[0].As16(), Port: [2]byte{0, 80},
		Protocol: s.Ports[0].Protocol, Scope: service.Inside}
}

// expectHeld checks that the maps have the frontends of the services and no others. Each endpoint
// in lists[i] must be in one slot of the i-th service. Endpoints are sorted.
func expectHeld(t *testing.T, n node, services []service.Service,
	lists []service.Slice) planner.MapContent {
	t.Helper()
	s, err := n.State()
	errtest.Must(t, err)
	if len(s.Frontends) != len(services) {
		t.Fatalf("%d frontends, want %d", len(s.Frontends), len(services))
	}
	taken := make([]bool, len(s.Backends))
	for i, svc := range services {
		f, want := s.Frontends[frontendOf(svc)], lists[i].Endpoints
		if int(f.Count) != want.Len() {
			t.Fatalf("service %s has %d slots, want %d", svc.Name, f.Count, want.Len())
		}
		for j, slot := range s.Backends[f.First : f.First+f.Count] {
			at := int(f.First) + j
			if taken[at] || slot.AddrPort() != netip.AddrPortFrom(want.At(j).Addr, 8080) {
				t.Fatalf("service %s: slot %d has %s, want %s; another's: %t", svc.Name, at,
					slot.AddrPort(), want.At(j).Addr, taken[at])
			}
			taken[at] = true
		}
	}
	return s
}

// expectRead reads a service as a program does: the frontend, a slot, and the frontend again. Each
// chunk is looked up once, because the kernel waits for an RCU period then (before Linux 6.8).
func expectRead(t *testing.T, n node, s service.Service, list service.Slice) {
	t.Helper()
	key := frontendOf(s)
	var f, again service.Frontend
	if err := n.maps[mapFrontends].Lookup(key, &f); err != nil {
		t.Fatalf("frontend of service %s: %v", s.Name, err)
	}
	if int(f.Count) != list.Endpoints.Len() {
		t.Fatalf("%s has %d slots, want %d", s.Name, f.Count, list.Endpoints.Len())
	}

	var chunk *ebpf.Map
	for i := range list.Endpoints.Len() {
		ep, at := list.Endpoints.At(i), f.First+uint32(i)
		if chunk == nil || at%slots.ChunkSlots == 0 {
			chunk = chunkOf(t, n, at)
		}
		var slot service.Backend
		errtest.Must(t, chunk.Lookup(at%slots.ChunkSlots, &slot))
		if slot.AddrPort() != netip.AddrPortFrom(ep.Addr, 8080) {
			t.Errorf("%s: slot %d of its own is %s, want %s", s.Name, i, slot.AddrPort(), ep.Addr)
		}
		if err := n.maps[mapFrontends].Lookup(key, &again); err != nil || again != f {
			t.Errorf("%s: %+v is %+v when it is read again, %v", s.Name, f, again, err)
		}
	}
}

// chunkOf opens the chunk of a slot until the test ends.
func chunkOf(t *testing.T, n node, at uint32) (chunk *ebpf.Map) {
	t.Helper()
	errtest.Must(t, n.maps[mapBackends].Lookup(at/slots.ChunkSlots, &chunk))
	t.Cleanup(func() { chunk.Close() })
	return chunk
}

// expectSame checks that the maps did not change.
func expectSame(t *testing.T, n node, was planner.MapContent) {
	t.Helper()
	now, err := n.State()
	errtest.Must(t, err)
	if !maps.Equal(now.Frontends, was.Frontends) || !slices.Equal(now.Backends, was.Backends) ||
		len(now.SourceRanges) != len(was.SourceRanges) {
		t.Error("the content of the maps has changed")
	}
}
