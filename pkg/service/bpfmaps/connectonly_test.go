package bpfmaps

import (
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/planner"
)

// entry0 sets an API server of each family.
func entry0(p *planner.Planner) {
	p.SetAPIServer(service.APIServer{
		Frontends: []netip.AddrPort{netip.MustParseAddrPort("198.18.0.9:443"),
			netip.MustParseAddrPort("[fd42::9]:443")},
		Backends: []netip.AddrPort{netip.MustParseAddrPort("198.18.1.1:8080"),
			netip.MustParseAddrPort("[fd42:1::1]:8080")},
	})
}

// Entry 0 alone needs four programs and little room. A table with all services replaces it without
// an effect on connections.
func TestConnectOnly(t *testing.T) {
	cgroup, c := nettest.NewCgroup(t), config(t)
	small := c
	small.ConnectOnly, small.Limits, small.Memory = true, service.APILimits, APIMemory
	n := start(t, small, entry0)
	connect := []string{"service_getpeername4", "service_getpeername6", "service_connect4",
		"service_connect6"}
	var want []string
	for _, program := range connect {
		want = append(want, "attached "+program)
	}
	if diff := cmp.Diff(want, n.attach(t, cgroup)); diff != "" {
		t.Error(diff)
	}

	h := newHands(t, cgroup)
	var held []result
	for to, server := range map[string]string{"198.18.0.9:443": "198.18.1.1",
		"[fd42::9]:443": "fd42:1::1"} {
		r := h.dial("tcp", to)
		if r.Peer != to || r.Answer != server {
			t.Errorf("connection to %s: %+v, want an answer of %s", to, r, server)
		}
		held = append(held, r)
	}
	memory := uint64(0)
	for name, m := range n.maps {
		info, err := m.Info()
		errtest.Must(t, err)
		used, _ := info.Memlock()
		t.Logf("map %s: %d bytes", name, used)
		memory += used
	}
	if memory == 0 || memory > 4<<20 {
		t.Errorf("the maps take %d bytes of kernel memory, want at most 4 MiB", memory)
	}
	pins := slices.Sorted(slices.Values(connect))
	if pinned := programPins(t, c.Dir); !slices.Equal(pinned, pins) {
		t.Errorf("programs %v are pinned", pinned)
	}

	full := start(t, c, func(p *planner.Planner) { entry0(p); lab(p) })
	changed := full.attach(t, cgroup)
	for _, hook := range socketHooks {
		did := "attached "
		if slices.Contains(connect, hook.program) {
			did = "replaced "
		}
		if !slices.Contains(changed, did+hook.program) {
			t.Errorf("a table with all services changed %v, want %s%s", changed, did, hook.program)
		}
	}
	for _, r := range held {
		if got := h.ask(r.ID); got != r.Answer {
			t.Errorf("a connection to %s went to %s, then to %s", r.Peer, r.Answer, got)
		}
	}
	if r := h.dial("udp", "198.18.0.1:53"); !slices.Contains(backends, r.Answer) {
		t.Errorf("a service by UDP: %+v", r)
	}
	if given, err := full.Given([]netip.AddrPort{netip.MustParseAddrPort("198.18.0.9:443")},
		h.ns.Path()); err != nil || len(given) != 1 {
		t.Errorf("the new table remembers %v of connections to API servers, %v", given, err)
	}
}

// programPins returns the pinned programs at sockets, sorted.
func programPins(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	errtest.Must(t, err)
	for _, e := range entries {
		if slices.ContainsFunc(socketHooks, func(h socketHook) bool {
			return h.program == e.Name()
		}) {
			names = append(names, e.Name())
		} else if slices.Contains([]string{MapTCP, MapOpening, MapUDP, MapQuotas}, e.Name()) {
			t.Errorf("%s is pinned", e.Name())
		}
	}
	return names
}

// BenchmarkConnectElsewhere connects by UDP to an address of no service, such as a resolver's.
func BenchmarkConnectElsewhere(b *testing.B) {
	for _, attached := range []bool{false, true} {
		name := "without programs"
		if attached {
			name = "with entry 0 alone"
		}
		b.Run(name, func(b *testing.B) {
			cgroup, c := nettest.NewCgroup(b), config(b)
			c.ConnectOnly, c.Limits, c.Memory = true, service.APILimits, APIMemory
			if n := start(b, c, entry0); attached {
				n.attach(b, cgroup)
			}
			h := newHands(b, cgroup)
			b.ResetTimer()
			if r := h.do(order{Do: "connects", To: "198.18.1.3:5353", Count: b.N}); r.Err != "" {
				b.Error(r.Err)
			}
		})
	}
}
