package keeper

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/pkg/service"
)

// A server that died is taken out of the list before connections to it are closed (the leases of
// kube-apiserver end after 15 s); they are all the same.
func TestConnectionsToServersThatLeftAreClosed(t *testing.T) {
	listed := func(addrs ...string) service.Slice {
		return slice(apiService, "https", 6443, addrs...)
	}
	gone, other := netip.MustParseAddrPort("198.18.0.1:6443"),
		netip.MustParseAddrPort("198.18.0.2:6443")
	for name, c := range map[string]struct {
		steps func(a *apiServers)
		times int
	}{
		"it is down and leaves": {func(a *apiServers) {
			a.report(gone, false)
			a.putSlice(listed("198.18.0.2"))
		}, mostCloses},
		"it leaves and goes down": {func(a *apiServers) {
			a.putSlice(listed("198.18.0.2"))
			a.report(gone, false)
		}, mostCloses},
		"it leaves and answers": {func(a *apiServers) {
			a.putSlice(listed("198.18.0.2"))
		}, 0},
		"it leaves, goes down and is back": {func(a *apiServers) {
			a.putSlice(listed("198.18.0.2"))
			a.report(gone, false)
			a.report(gone, true)
		}, 0},
		"it leaves, and is listed again": {func(a *apiServers) {
			a.putSlice(listed("198.18.0.2"))
			a.putSlice(listed("198.18.0.1", "198.18.0.2"))
		}, 0},
		"nobody else is known to answer": {func(a *apiServers) {
			a.report(gone, false)
			a.report(other, false)
			a.putSlice(listed("198.18.0.2"))
		}, 0},
		"it is down, and its address is the service's now": {func(a *apiServers) {
			a.report(gone, false)
			a.listed = append(a.listed, gone)
			a.putSlice(listed("198.18.0.2"))
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPIServers("node-1", APIServers{Frontends: addrPorts(apiFrontend)})
			probed := map[netip.AddrPort]bool{}
			a.run = func(_ *server, addr netip.AddrPort) func() {
				probed[addr] = true
				return func() { delete(probed, addr) }
			}
			a.putSlice(listed("198.18.0.1", "198.18.0.2"))
			a.report(gone, true)
			a.report(other, true)
			c.steps(a)
			if e := a.entry(); len(a.slices["kubernetes-1"]) == 1 &&
				slices.Contains(e.Backends, gone) {
				t.Errorf("a server that left is one of %v", e.Backends)
			}

			expectLooks(t, a, gone, c.times)
			still := name == "it leaves, and is listed again" ||
				name == "nobody else is known to answer"
			if (a.servers[gone] != nil) != still || probed[gone] != still {
				t.Errorf("it is known: %t, and probed: %t", a.servers[gone] != nil, probed[gone])
			}
		})
	}
}

// expectLooks counts how often connections to a server that is gone are looked for, and those to no
// other, for longer than is done.
func expectLooks(t *testing.T, a *apiServers, gone netip.AddrPort, want int) {
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
		t.Errorf("connections were looked for %d times, want %d", times, want)
	}
}

// A server that left, and connections to which could not be closed, is not done with.
func TestConnectionsThatCannotBeClosedAreTriedOn(t *testing.T) {
	gone := netip.MustParseAddrPort("198.18.0.1:6443")
	a := newAPIServers("node-1", APIServers{Frontends: addrPorts(apiFrontend)})
	a.run = func(*server, netip.AddrPort) func() { return func() {} }
	a.putSlice(slice(apiService, "https", 6443, "198.18.0.1", "198.18.0.2"))
	a.report(gone, false)
	a.report(netip.MustParseAddrPort("198.18.0.2:6443"), true)
	a.putSlice(slice(apiService, "https", 6443, "198.18.0.2"))
	times := 0
	for after := time.Duration(0); times < mostCloses+3 && after < time.Hour; after += time.Second {
		times += len(sweeps(a, time.Now().Add(after)))
	}
	if times != mostCloses+3 || a.servers[gone] == nil {
		t.Errorf("they were tried %d times, and it is known: %t", times, a.servers[gone] != nil)
	}
}

// After a restart, what sockets were given tells of servers that had left the list before.
func TestServersThatLeftBeforeTheStartAreWatched(t *testing.T) {
	gone, other := netip.MustParseAddrPort("198.18.0.1:6443"),
		netip.MustParseAddrPort("198.18.0.2:6443")
	for name, c := range map[string]struct {
		steps func(a *apiServers)
		times int
	}{
		"it does not answer": {func(*apiServers) {}, mostCloses},
		"it answers":         {func(a *apiServers) { a.report(gone, true) }, 0},
		"it is listed, and comes back": {func(a *apiServers) {
			a.putSlice(slice(apiService, "https", 6443, "198.18.0.1", "198.18.0.2"))
			a.report(gone, true)
		}, 0},
		"nobody else answers": {func(a *apiServers) { a.report(other, false) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			table := newFakeTable()
			table.given = append(addrPorts(apiFrontend), gone, other)
			p, err := New(Options{Limits: limits, Table: table,
				APIServers: APIServers{Frontends: addrPorts(apiFrontend),
					Configured: []netip.AddrPort{other}}})
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Begin(); err != nil {
				t.Fatal(err)
			}
			if got, want := table.backends(apiFrontend), other.String(); got != want {
				t.Errorf("entry 0 has %s, want %s", got, want)
			}

			a := p.api
			a.start(t.Context(), new(sync.WaitGroup),
				func(context.Context, probe) {}, func() {})
			a.report(other, true)
			c.steps(a)

			expectLooks(t, a, gone, c.times)
		})
	}
}

// What is sure goes before what the maps have, and both before a guess.
func TestFrontendsBeforeAnyList(t *testing.T) {
	frontend := func(text string) service.APIServer {
		return service.APIServer{Frontends: addrPorts(text), Backends: addrPorts("198.18.0.1:6443")}
	}
	for name, c := range map[string]struct {
		before APIServers
		maps   service.APIServer
		want   string
	}{
		"a guess": {APIServers{Guessed: addrPorts("198.18.128.1:443")},
			service.APIServer{}, "198.18.128.1:443"},
		"the maps and a guess": {APIServers{Guessed: addrPorts("198.18.128.1:443")},
			frontend("198.18.200.1:443"), "198.18.200.1:443"},
		"what is sure and a guess": {APIServers{Frontends: addrPorts("198.18.201.1:443"),
			Guessed: addrPorts("198.18.128.1:443")}, service.APIServer{}, "198.18.201.1:443"},
		"what is sure and the maps": {APIServers{Frontends: addrPorts("198.18.201.1:443")},
			frontend("198.18.200.1:443"), "198.18.200.1:443 198.18.201.1:443"},
		"the same twice": {APIServers{Frontends: addrPorts("198.18.200.1:443")},
			frontend("198.18.200.1:443"), "198.18.200.1:443"},
		"a family without servers": {APIServers{Frontends: addrPorts("198.18.201.1:443",
			"[fd42::1]:443")}, service.APIServer{}, "198.18.201.1:443"},
	} {
		t.Run(name, func(t *testing.T) {
			planner, err := service.New("node-1", limits)
			if err != nil {
				t.Fatal(err)
			}

			planner.SetAPIServer(c.maps)
			table := newFakeTable()
			if err := table.Apply(planner.Plan()); err != nil {
				t.Fatal(err)
			}

			begin(t, table, func(o *Options) {
				o.APIServers = c.before
				o.APIServers.Configured = addrPorts("198.18.0.1:6443")
			})
			state, err := table.State()
			if err != nil {
				t.Fatal(err)
			}

			var got []string
			for k := range state.Frontends {
				got = append(got, k.AddrPort().String())
			}

			slices.Sort(got)
			if strings.Join(got, " ") != c.want {
				t.Errorf("entry 0 is at %q, want %q", got, c.want)
			}
		})
	}
}

// A server that the last process had found dead is so until it answers.
func TestServersThatWereDeadBeforeARestart(t *testing.T) {
	table := newFakeTable()
	_, probes, stop := begin(t, table, nil)
	probes.say(t, "198.18.0.1:6443", false)
	table.waitBackends(t, apiFrontend, "198.18.0.2:6443")
	stop()
	_, probes, _ = begin(t, table, nil)
	if got, want := table.backends(apiFrontend), "198.18.0.2:6443"; got != want {
		t.Errorf("entry 0 begins with %q, want %q", got, want)
	}
	probes.say(t, "198.18.0.1:6443", true)
	table.waitBackends(t, apiFrontend, "198.18.0.1:6443 198.18.0.2:6443")
}

// What is wrong with the writes of services does not keep entry 0 from following its servers, at
// once.
func TestEntryZeroWhileWritesFail(t *testing.T) {
	table := newFakeTable()
	p, probes, _ := begin(t, table, nil, func(p *Keeper) { p.loop.RetryMin = time.Hour })
	p.PutService(webService())
	p.PutSlice(slice(web, "http", 8080, "198.18.1.1"))
	p.Listed()
	table.waitBackends(t, webFrontend, "198.18.1.1:8080")
	table.setRefuse(func(c service.Changes) bool {
		return slices.ContainsFunc(c.Frontends.Keys,
			func(k service.FrontendKey) bool { return k.AddrPort().String() == webFrontend })
	})
	p.PutSlice(slice(web, "http", 8080, "198.18.1.2"))
	wait(t, "failure", func() error {
		if p.Status().Failed == "" {
			return fmt.Errorf("the status says nothing")
		}
		return nil
	})
	probes.say(t, "198.18.0.1:6443", false)
	table.waitBackends(t, apiFrontend, "198.18.0.2:6443")
	if got := table.backends(webFrontend); got != "198.18.1.1:8080" {
		t.Errorf("the service that cannot be written has %q", got)
	}
	table.setRefuse(nil)
	probes.say(t, "198.18.0.1:6443", true)
	table.waitBackends(t, webFrontend, "198.18.1.2:8080")
}

// A table that could not take over what is in force is put in force once it is whole.
func TestFreshTable(t *testing.T) {
	table := newFakeTable()
	table.fresh = true
	p, probes, _ := begin(t, table, nil)
	probes.say(t, "198.18.0.1:6443", false)
	table.waitBackends(t, apiFrontend, "198.18.0.2:6443")
	if n := table.attaches(); n != 0 {
		t.Fatalf("attached %d times before the services are listed", n)
	}
	p.PutService(webService())
	p.PutSlice(slice(web, "http", 8080, "198.18.1.1"))
	p.Listed()
	<-p.Attached()
	if got := table.backends(webFrontend); got != "198.18.1.1:8080" || table.attaches() != 1 {
		t.Errorf("attached %d times, with %q", table.attaches(), got)
	}
}

// The program that has a healthCheckNodePort, such as the kube-proxy that is to go, ends without a
// change of services.
func TestHealthPortThatBecomesFree(t *testing.T) {
	var taken atomic.Bool
	taken.Store(true)
	p, _, _ := begin(t, newFakeTable(), nil, func(p *Keeper) {
		p.health.listen = func(string) (net.Listener, error) {
			if taken.Load() {
				return nil, errors.New("address in use")
			}
			return net.Listen("tcp", "127.0.0.1:0")
		}
	})
	p.PutService(localService(31000))
	p.Listed()
	problems := func(n int) func() error {
		return func() error {
			if got := p.health.problems(); len(got) != n {
				return fmt.Errorf("problems %q", got)
			}
			return nil
		}
	}
	wait(t, "problem", problems(1))
	taken.Store(false)
	wait(t, "end of the problem", problems(0))
}

// A server that does not answer is no backend, and keeps its address from services.
func TestServerThatDoesNotAnswerIsReserved(t *testing.T) {
	a := newAPIServers("node-1", APIServers{Frontends: addrPorts(apiFrontend)})
	a.run = func(*server, netip.AddrPort) func() { return func() {} }
	gone, other := netip.MustParseAddrPort("198.18.0.1:6443"),
		netip.MustParseAddrPort("198.18.0.2:6443")
	a.putSlice(slice(apiService, "https", 6443, "198.18.0.1", "198.18.0.2"))
	a.report(gone, true)
	a.report(other, true)
	if e := a.entry(); len(e.Backends) != 2 || len(e.Reserved) > 0 {
		t.Errorf("both answer: %+v", e)
	}
	a.report(gone, false)
	if e := a.entry(); !slices.Equal(e.Backends, []netip.AddrPort{other}) ||
		!slices.Equal(e.Reserved, []netip.AddrPort{gone}) {
		t.Errorf("one answers: %+v", e)
	}
	a.report(other, false)
	if e := a.entry(); len(e.Backends) != 2 || len(e.Reserved) > 0 {
		t.Errorf("none answers: %+v", e)
	}
}
