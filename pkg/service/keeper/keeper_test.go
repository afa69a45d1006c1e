package keeper

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/apiserver"
	"github.com/kubeveil/kubeveil/pkg/service/planner"
	"github.com/kubeveil/kubeveil/pkg/service/servicetest"
)

const (
	apiFrontend = "198.18.128.1:443"
	webFrontend = "198.18.128.10:80"
)

// apiService is the service of the API servers.
var apiService = service.Name{Namespace: "default", Name: "kubernetes"}

var web = service.Name{Namespace: "default", Name: "web"}

func webService() service.Service {
	return service.Service{Name: web,
		ClusterIPs: []netip.Addr{netip.MustParseAddr("198.18.128.10")},
		Ports: []service.Port{{Name: "http", Protocol: service.TCP, Port: 80,
			NodePort: 30080}}}
}

// fakeProbes are probers whose results a test sets.
type fakeProbes struct {
	mu      sync.Mutex
	reports map[netip.AddrPort]func(bool)
}

func (f *fakeProbes) probe(ctx context.Context, addr netip.AddrPort, report func(bool)) {
	f.mu.Lock()
	f.reports[addr] = report
	f.mu.Unlock()
	<-ctx.Done()
	f.mu.Lock()
	delete(f.reports, addr)
	f.mu.Unlock()
}

// say waits until the server is probed, and then reports up as the result.
func (f *fakeProbes) say(t *testing.T, addr string, up bool) {
	t.Helper()
	servicetest.Wait(t, "probe of "+addr, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		report := f.reports[netip.MustParseAddrPort(addr)]
		if report == nil {
			return fmt.Errorf("only %d servers are probed", len(f.reports))
		}
		report(up)
		return nil
	})
}

// begin makes a Keeper that runs until the test ends.
func begin(t *testing.T, table *fakeTable, change func(*ServiceConfig),
	tweaks ...func(*Keeper)) (*Keeper, *fakeProbes, func()) {
	t.Helper()
	probes := &fakeProbes{reports: map[netip.AddrPort]func(bool){}}
	o := ServiceConfig{
		Node: "node-1", Limits: limits, Table: table,
		API: apiserver.ServersConfig{Probe: probes.probe, Known: apiserver.Known{
			Frontends:  nettest.AddrPorts(apiFrontend),
			Remembered: nettest.AddrPorts("198.18.0.1:6443", "198.18.0.2:6443")}},
	}
	if change != nil {
		change(&o)
	}
	p, err := New(o)
	errtest.Must(t, err)

	p.settled, p.listen, p.abortAgain = time.Millisecond, time.Millisecond, time.Millisecond
	for _, tweak := range tweaks {
		tweak(p)
	}

	p.SetNodeAddrs(nil)
	errtest.Must(t, p.Begin())

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.Run(ctx)
	}()
	stop := sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)

	return p, probes, stop
}

func TestEntryZeroBeforeAnyList(t *testing.T) {
	table := newFakeTable()
	_, probes, _ := begin(t, table, nil)
	if got, want := table.backends(apiFrontend), "198.18.0.1:6443 198.18.0.2:6443"; got != want ||
		table.attached != 1 {
		t.Fatalf("after Begin: %q, attached %d times, want %q once", got, table.attached, want)
	}
	probes.say(t, "198.18.0.1:6443", false)
	table.waitBackends(t, apiFrontend, "198.18.0.2:6443")
	probes.say(t, "198.18.0.2:6443", false)
	table.waitBackends(t, apiFrontend, "198.18.0.1:6443 198.18.0.2:6443") // all when none answers
	probes.say(t, "198.18.0.1:6443", true)
	table.waitBackends(t, apiFrontend, "198.18.0.1:6443")
}

func TestListedServersReplaceRememberedOnes(t *testing.T) {
	table := newFakeTable()
	p, probes, _ := begin(t, table, func(o *ServiceConfig) {
		o.API.Known.Configured = nettest.AddrPorts("198.18.0.9:6443")
	})
	p.PutSlice(servicetest.ReadySlice(apiService, "https", 6443, "198.18.0.2", "198.18.0.3"))
	p.Listed()
	table.waitBackends(t, apiFrontend, "198.18.0.2:6443 198.18.0.3:6443 198.18.0.9:6443")
	probes.say(t, "198.18.0.3:6443", false)
	table.waitBackends(t, apiFrontend, "198.18.0.2:6443 198.18.0.9:6443")
}

// The last server removes itself from the list when it ends, and clients must find it when it is
// back. So the servers of the last list stay, alive or not.
func TestServersStayWhenTheListIsEmpty(t *testing.T) {
	for name, empty := range map[string]func(*Keeper){
		"no endpoints": func(p *Keeper) {
			p.PutSlice(servicetest.ReadySlice(apiService, "https", 6443))
		},
		"no slice": func(p *Keeper) { p.DeleteSlice(apiService, "kubernetes-1") },
	} {
		t.Run(name, func(t *testing.T) {
			table := newFakeTable()
			p, probes, _ := begin(t, table, nil)
			p.PutSlice(servicetest.ReadySlice(apiService, "https", 6443, "198.18.0.2",
				"198.18.0.3"))
			p.Listed()
			table.waitBackends(t, apiFrontend, "198.18.0.2:6443 198.18.0.3:6443")
			probes.say(t, "198.18.0.2:6443", true)
			probes.say(t, "198.18.0.3:6443", false)
			table.waitBackends(t, apiFrontend, "198.18.0.2:6443")
			empty(p)
			p.PutService(webService())
			p.PutSlice(servicetest.ReadySlice(web, "http", 8080, "198.18.1.1"))
			table.waitBackends(t, webFrontend, "198.18.1.1:8080") // what came before has been taken
			table.waitBackends(t, apiFrontend, "198.18.0.2:6443")
			probes.say(t, "198.18.0.2:6443", false)
			table.waitBackends(t, apiFrontend, "198.18.0.2:6443 198.18.0.3:6443")
			p.PutSlice(servicetest.ReadySlice(apiService, "https", 6443, "198.18.0.4"))
			table.waitBackends(t, apiFrontend, "198.18.0.4:6443")
		})
	}
}

// TestChangesDoNotPileUp checks that the queue has at most one change per object while the Keeper
// waits for the lists.
func TestChangesDoNotPileUp(t *testing.T) {
	table := newFakeTable()
	p, _, _ := begin(t, table, nil)
	for i := range 100 {
		p.PutSlice(servicetest.ReadySlice(web, "http", uint16(8000+i), "198.18.1.1"))
		p.PutService(webService())
		p.DeleteService(web)
	}
	p.PutService(webService())
	p.inbox.mu.Lock()
	n := len(p.inbox.queue.all)
	p.inbox.mu.Unlock()
	if n != 2 {
		t.Errorf("%d changes wait, want one of the service and one of its slice", n)
	}
	p.Listed()
	table.waitBackends(t, webFrontend, "198.18.1.1:8099")
}

func TestNothingGoesBeforeTheListsHaveCome(t *testing.T) {
	table := newFakeTable()
	p, _, stop := begin(t, table, nil)
	p.PutService(webService())
	p.PutSlice(servicetest.ReadySlice(web, "http", 8080, "198.18.1.1"))
	p.Listed()
	table.waitBackends(t, webFrontend, "198.18.1.1:8080")
	stop()

	writes := table.written()
	// the maps remember the servers
	p, probes, _ := begin(t, table, func(o *ServiceConfig) { o.API.Known = apiserver.Known{} })
	probes.say(t, "198.18.0.1:6443", false)
	table.waitBackends(t, apiFrontend, "198.18.0.2:6443")
	if got := table.backends(webFrontend); got != "198.18.1.1:8080" {
		t.Errorf("a service that was not listed yet has %q", got)
	}
	probes.say(t, "198.18.0.1:6443", true)
	table.waitBackends(t, apiFrontend, "198.18.0.1:6443 198.18.0.2:6443")
	entry := table.written()
	p.PutSlice(servicetest.ReadySlice(web, "http", 8080, "198.18.1.1"))
	p.PutService(webService())
	p.Listed()
	servicetest.Wait(t, "listed", func() error {
		if s := p.Status(); s.Services != 1 {
			return fmt.Errorf("%d services", s.Services)
		}
		return nil
	})
	if n := table.written() - entry; n != 0 {
		t.Errorf("a restart that finds the same services made %d writes (of %d)", n, writes)
	}
	p.DeleteService(web)
	table.waitBackends(t, webFrontend, "none")
}

func TestWritesThatFailAreMadeAgain(t *testing.T) {
	table := newFakeTable()
	p, _, _ := begin(t, table, nil)
	p.PutService(webService())
	p.PutSlice(servicetest.ReadySlice(web, "http", 8080, "198.18.1.1"))
	p.Listed()
	table.waitBackends(t, webFrontend, "198.18.1.1:8080")
	table.setFail(2)
	p.PutSlice(servicetest.ReadySlice(web, "http", 8080, "198.18.1.2"))
	servicetest.Wait(t, "failure", func() error {
		if p.Status().Failed == "" {
			return fmt.Errorf("the status says nothing")
		}
		return nil
	})
	p.PutSlice(servicetest.ReadySlice(web, "http", 8080, "198.18.1.3")) // while it is broken
	table.waitBackends(t, webFrontend, "198.18.1.3:8080")
	servicetest.Wait(t, "end of failure", func() error {
		if s := p.Status(); s.Failed != "" || s.Failures != 2 {
			return fmt.Errorf("%d failures, now %q", s.Failures, s.Failed)
		}
		return nil
	})
}

// TestWritesThatFailAreObservedToo makes a change wait for two pauses, of which the first is
// retryMin.
func TestWritesThatFailAreObservedToo(t *testing.T) {
	table, took := newFakeTable(), make(chan time.Duration, 16)
	p, _, _ := begin(t, table, func(o *ServiceConfig) {
		o.Observe = func(d time.Duration) { took <- d }
	})
	observed := func() (d time.Duration) {
		t.Helper()
		servicetest.Wait(t, "observation", func() error {
			select {
			case d = <-took:
				return nil
			default:
				return errors.New("none")
			}
		})
		return d
	}

	p.PutService(webService())
	p.PutSlice(servicetest.ReadySlice(web, "http", 8080, "198.18.1.1"))
	p.Listed()
	if d := observed(); d <= 0 {
		t.Errorf("the first change took %v", d)
	}

	table.setFail(2)
	p.PutSlice(servicetest.ReadySlice(web, "http", 8080, "198.18.1.2"))
	if d := observed(); d < 2*retryMin {
		t.Errorf("a change that could be written at the third try took %v", d)
	}
	if got := table.backends(webFrontend); got != "198.18.1.2:8080" {
		t.Errorf("the change was observed while the backends were %q", got)
	}
}

func TestNodePortsFollowTheNodesAddresses(t *testing.T) {
	table := newFakeTable()
	p, _, _ := begin(t, table, nil)
	p.SetNodeAddrs([]netip.Addr{netip.MustParseAddr("198.18.9.1")})
	p.PutService(webService())
	p.PutSlice(servicetest.ReadySlice(web, "http", 8080, "198.18.1.1"))
	p.Listed()
	table.waitBackends(t, "198.18.9.1:30080", "198.18.1.1:8080")
	p.SetNodeAddrs([]netip.Addr{netip.MustParseAddr("198.18.9.2")})
	table.waitBackends(t, "198.18.9.2:30080", "198.18.1.1:8080")
	table.waitBackends(t, "198.18.9.1:30080", "none")
}

func TestProblemsAreShown(t *testing.T) {
	p, _, _ := begin(t, newFakeTable(), nil)
	s := webService()
	s.Ports = append(s.Ports, service.Port{Name: "sctp", Protocol: service.SCTP, Port: 90})
	p.PutService(s)
	p.Listed()
	servicetest.Wait(t, "problem", func() error {
		if got := p.Status().Problems; len(got) != 1 {
			return fmt.Errorf("problems %q", got)
		}
		return nil
	})
}

func TestAsk(t *testing.T) {
	p, _, stop := begin(t, newFakeTable(), nil)
	p.PutService(webService())
	p.Listed()
	servicetest.Wait(t, "view", func() error {
		views, err := planner.List(service.Name{},
			func(f func(*planner.Planner)) error { return p.Ask(t.Context(), f) })
		errtest.Must(t, err)
		if len(views) != 2 {
			return fmt.Errorf("%d views, want entry 0 and a service", len(views))
		}
		return nil
	})
	stop()
	if err := p.Ask(t.Context(), func(*planner.Planner) {}); err == nil {
		t.Error("a Keeper that ended answers")
	}
}

func TestDatagramsToBackendsThatWentAreAborted(t *testing.T) {
	table, aborted := newFakeTable(), make(chan struct{}, 10)
	p, _, _ := begin(t, table, func(o *ServiceConfig) {
		o.AbortDatagrams = func() (int, error) { aborted <- struct{}{}; return 1, nil }
	})
	s := webService()
	s.Ports[0].Protocol = service.UDP
	p.PutService(s)
	dns := servicetest.ReadySlice(web, "http", 53, "198.18.1.1", "198.18.1.2")
	dns.Ports[0].Protocol = service.UDP
	p.PutSlice(dns)

	p.Listed()
	table.waitBackends(t, webFrontend, "198.18.1.1:53 198.18.1.2:53")

	waitAborts(t, aborted, "a process begins")
	if len(aborted) != 0 {
		t.Error("sockets were searched for although no backend was deleted")
	}

	gone := servicetest.ReadySlice(web, "http", 53, "198.18.1.1")
	gone.Ports[0].Protocol = service.UDP
	p.PutSlice(gone)
	waitAborts(t, aborted, "a backend went")
	older := s
	older.Name.Name, older.Created, older.Ports = "older", time.Unix(1, 0), s.Ports[:1:1]
	s.Created = time.Unix(2, 0)
	p.PutService(s)
	p.PutService(older)
	waitAborts(t, aborted, "an address went to another service")
}

// waitAborts waits for two searches for stale sockets. The second search finds sockets that were
// connecting during the first.
func waitAborts(t *testing.T, aborted <-chan struct{}, situation string) {
	t.Helper()
	for range 2 {
		select {
		case <-aborted:
		case <-time.After(10 * time.Second):
			t.Errorf("%s: sockets were not searched for", situation)
		}
	}
}

// TestDatagramsAreAbortedAfterErrors has sockets that cannot be closed at the first try, and a
// write that fails half-way.
func TestDatagramsAreAbortedAfterErrors(t *testing.T) {
	table, aborted := newFakeTable(), make(chan struct{}, 10)
	tries := 0
	p, _, _ := begin(t, table, func(o *ServiceConfig) {
		o.AbortDatagrams = func() (int, error) {
			if tries++; tries == 1 {
				return 0, errBroken
			}
			aborted <- struct{}{}
			return 1, nil
		}
	}, func(p *Keeper) { p.abortRetry = time.Millisecond })

	s := webService()
	s.Ports[0].Protocol = service.UDP
	p.PutService(s)
	two := servicetest.ReadySlice(web, "http", 53, "198.18.1.1", "198.18.1.2")
	two.Ports[0].Protocol = service.UDP
	p.PutSlice(two)
	p.Listed()
	table.waitBackends(t, webFrontend, "198.18.1.1:53 198.18.1.2:53")
	waitAborts(t, aborted, "an error")
	table.setRefuse(func(c service.Changes) bool { return c.LostUDP })
	one := two
	one.Endpoints = service.EndpointsOf(two.Endpoints.At(0))
	p.PutSlice(one)
	waitAborts(t, aborted, "a write that failed")
}
