package apiserver

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/apiserver/prober"
	"github.com/kubeveil/kubeveil/pkg/service/servicetest"
)

// Connections to a dead server are closed even if it leaves the list before (the leases of
// kube-apiserver end after 15 s).
func TestConnectionsToServersThatLeftAreClosed(t *testing.T) {
	listed := func(addrs ...string) service.Slice {
		return servicetest.ReadySlice(apiService, "https", 6443, addrs...)
	}
	gone, other := netip.MustParseAddrPort("198.18.0.1:6443"),
		netip.MustParseAddrPort("198.18.0.2:6443")
	for name, c := range map[string]struct {
		steps func(a *Servers)
		times int
	}{
		"it is down and leaves": {func(a *Servers) {
			a.report(gone, false)
			a.PutSlice(listed("198.18.0.2"))
		}, mostCloses},
		"it leaves and goes down": {func(a *Servers) {
			a.PutSlice(listed("198.18.0.2"))
			a.report(gone, false)
		}, mostCloses},
		"it leaves and answers": {func(a *Servers) {
			a.PutSlice(listed("198.18.0.2"))
		}, 0},
		"it leaves, goes down and is back": {func(a *Servers) {
			a.PutSlice(listed("198.18.0.2"))
			a.report(gone, false)
			a.report(gone, true)
		}, 0},
		"it leaves, and is listed again": {func(a *Servers) {
			a.PutSlice(listed("198.18.0.2"))
			a.PutSlice(listed("198.18.0.1", "198.18.0.2"))
		}, 0},
		"nobody else is known to answer": {func(a *Servers) {
			a.report(gone, false)
			a.report(other, false)
			a.PutSlice(listed("198.18.0.2"))
		}, 0},
		"it is down, and its address is the service's now": {func(a *Servers) {
			a.report(gone, false)
			a.listed = append(a.listed, gone)
			a.PutSlice(listed("198.18.0.2"))
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			a := newServers(Known{Frontends: nettest.AddrPorts(apiFrontend)})
			probed := map[netip.AddrPort]bool{}
			a.run = func(_ *server, addr netip.AddrPort) func() {
				probed[addr] = true
				return func() { delete(probed, addr) }
			}
			a.PutSlice(listed("198.18.0.1", "198.18.0.2"))
			a.report(gone, true)
			a.report(other, true)
			c.steps(a)
			if e := a.Entry(); len(a.slices["kubernetes-1"]) == 1 &&
				slices.Contains(e.Backends, gone) {
				t.Errorf("a server that left is one of %v", e.Backends)
			}

			expectLooks(t, a, gone, c.times)
			still := name == "it leaves, and is listed again" ||
				name == "nobody else is known to answer"
			if (a.servers[gone] != nil) != still || probed[gone] != still {
				t.Errorf("server known: %t, probed: %t", a.servers[gone] != nil, probed[gone])
			}
		})
	}
}

// expectLooks checks the number of searches for connections to a server that is gone. It waits for
// longer than searches continue, and checks that there are none for other servers.
func expectLooks(t *testing.T, a *Servers, gone netip.AddrPort, want int) {
	t.Helper()
	times := 0
	for after := time.Duration(0); after < leftFor+time.Minute; after += time.Second {
		for _, c := range a.due(time.Now().Add(after)) {
			if a.closed(c, 0, nil, 0); c.Server != gone {
				t.Errorf("connections to %s are closed", c.Server)
			}
			if !c.Stuck {
				times++
			}
		}
	}
	if times != want {
		t.Errorf("%d searches for connections, want %d", times, want)
	}
}

// A server that left is kept while connections to it cannot be closed.
func TestConnectionsThatCannotBeClosedAreTriedOn(t *testing.T) {
	gone := netip.MustParseAddrPort("198.18.0.1:6443")
	a := newServers(Known{Frontends: nettest.AddrPorts(apiFrontend)})
	a.run = func(*server, netip.AddrPort) func() { return func() {} }
	a.PutSlice(servicetest.ReadySlice(apiService, "https", 6443, "198.18.0.1", "198.18.0.2"))
	a.report(gone, false)
	a.report(netip.MustParseAddrPort("198.18.0.2:6443"), true)
	a.PutSlice(servicetest.ReadySlice(apiService, "https", 6443, "198.18.0.2"))
	times := 0
	for after := time.Duration(0); times < mostCloses+3 && after < time.Hour; after += time.Second {
		times += len(sweeps(a, time.Now().Add(after)))
	}
	if times != mostCloses+3 || a.servers[gone] == nil {
		t.Errorf("%d tries to close, and the server is known: %t", times, a.servers[gone] != nil)
	}
}

// After a restart, the backends that sockets got include servers that had left the list before.
func TestServersThatLeftBeforeTheStartAreWatched(t *testing.T) {
	gone, other := netip.MustParseAddrPort("198.18.0.1:6443"),
		netip.MustParseAddrPort("198.18.0.2:6443")
	for name, c := range map[string]struct {
		steps func(a *Servers)
		times int
	}{
		"it does not answer": {func(*Servers) {}, mostCloses},
		"it answers":         {func(a *Servers) { a.report(gone, true) }, 0},
		"it is listed, and comes back": {func(a *Servers) {
			a.PutSlice(servicetest.ReadySlice(apiService, "https", 6443, "198.18.0.1",
				"198.18.0.2"))
			a.report(gone, true)
		}, 0},
		"nobody else answers": {func(a *Servers) { a.report(other, false) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			a := newServers(Known{Frontends: nettest.AddrPorts(apiFrontend),
				Configured: []netip.AddrPort{other}})
			a.AdoptLeft(append(nettest.AddrPorts(apiFrontend), gone, other))
			if got := a.Entry().Backends; !slices.Equal(got, []netip.AddrPort{other}) {
				t.Errorf("entry 0 has %s, want %s", got, other)
			}

			a.probe = func(context.Context, prober.Target) {}
			a.startProbes(t.Context(), new(sync.WaitGroup), func() {})
			a.report(other, true)
			c.steps(a)

			expectLooks(t, a, gone, c.times)
		})
	}
}

// A server that does not answer is not a backend, and no service can claim its address.
func TestServerThatDoesNotAnswerIsReserved(t *testing.T) {
	a := newServers(Known{Frontends: nettest.AddrPorts(apiFrontend)})
	a.run = func(*server, netip.AddrPort) func() { return func() {} }
	gone, other := netip.MustParseAddrPort("198.18.0.1:6443"),
		netip.MustParseAddrPort("198.18.0.2:6443")
	a.PutSlice(servicetest.ReadySlice(apiService, "https", 6443, "198.18.0.1", "198.18.0.2"))
	a.report(gone, true)
	a.report(other, true)
	if e := a.Entry(); len(e.Backends) != 2 || len(e.Reserved) > 0 {
		t.Errorf("both answer: %+v", e)
	}
	a.report(gone, false)
	if e := a.Entry(); !slices.Equal(e.Backends, []netip.AddrPort{other}) ||
		!slices.Equal(e.Reserved, []netip.AddrPort{gone}) {
		t.Errorf("one answers: %+v", e)
	}
	a.report(other, false)
	if e := a.Entry(); len(e.Backends) != 2 || len(e.Reserved) > 0 {
		t.Errorf("none answers: %+v", e)
	}
}
