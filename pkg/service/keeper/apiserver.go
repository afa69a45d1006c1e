package keeper

import (
	"context"
	"crypto/tls"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/pkg/service"
)

// APIServers are the API servers that are known before the first list.
type APIServers struct {
	// Frontends are the confirmed addresses of their service. Addresses in the maps count too.
	Frontends []netip.AddrPort
	// Guessed are probable addresses of their service, for use while none is confirmed.
	Guessed []netip.AddrPort
	// Configured are servers that count beside those of the list.
	Configured []netip.AddrPort
	// Remembered are the servers to use while the list is empty or not read yet. The last server
	// removes itself from the list when it ends, and must be found when it returns.
	Remembered []netip.AddrPort
	// Host are addresses that lead the node's own TCP sockets to the servers whose certificates
	// name them (services.apiFrontends). At most service.MaxHostFrontends count.
	Host []netip.AddrPort
}

// apiService is the service of the API servers, apiPort the name of its port. The API servers write
// its endpoints themselves.
var (
	apiService = service.Name{Namespace: "default", Name: "kubernetes"}
	apiPort    = "https"
)

// apiServers probes the API servers and decides the frontends and backends of entry 0.
type apiServers struct {
	mu     sync.Mutex // guards the fields below
	before APIServers
	listed []netip.AddrPort // frontends of the listed service
	slices map[string][]netip.AddrPort
	// servers are the candidates. Each has a probe once run is set.
	servers map[netip.AddrPort]*server
	run     func(s *server, addr netip.AddrPort) (stop func())
	closing closings
	pace    pace
	// verify verifies the certificate of a server; nil means that it cannot be verified.
	verify func(tls.ConnectionState) error
	// mark is the mark of the probes' sockets; 0 means none.
	mark uint32
}

// server is a candidate for a backend of entry 0, or one that left the list.
type server struct {
	judgement
	// since is when up last changed, or when it stopped answering if that was later; zero before the
	// first probe result. heard is answers as it was then.
	since time.Time
	heard bool
	// probed reports whether this process has a probe result: up may be the last one's.
	probed      bool
	stop        func()
	left        time.Time     // when it left the list and entry 0; zero while it is listed
	swept       time.Time     // when all connections to it were last closed
	searched    bool          // whether stuck ones were searched for since it stopped answering
	next        time.Time     // when they are searched for again
	full        time.Time     // when all namespaces may be searched for stuck ones again
	times       int           // how often all were closed without an error since it stopped answering
	asked       time.Time     // when ask was last sent to
	connections int           // of the node and its pods at the last count, without probes
	ask         chan struct{} // has the server probed at once; capacity 1
}

func newServer() *server { return &server{ask: make(chan struct{}, 1)} }

// newAPIServers returns the API servers before any list. The node's name spreads the closing of
// connections.
func newAPIServers(node string, before APIServers) *apiServers {
	before.Host = hostAddrs(before.Host)
	a := &apiServers{before: before, slices: map[string][]netip.AddrPort{},
		servers: map[netip.AddrPort]*server{}, closing: newClosings(node)}
	a.syncLocked()
	return a
}

// adopt remembers the servers in the maps. If the maps have servers, a candidate that they lack
// counts as dead until it answers: the last process had found it dead.
func (a *apiServers) adopt(s service.State) {
	a.mu.Lock()
	defer a.mu.Unlock()
	was := s.APIServer()
	a.before.Remembered = slices.Concat(a.before.Remembered, was.Backends)
	for _, h := range was.Host {
		a.before.Remembered = append(a.before.Remembered, h.Backends...)
	}
	a.before.Frontends = slices.Concat(a.before.Frontends, was.Frontends)
	slices.SortFunc(a.before.Frontends, netip.AddrPort.Compare)
	a.before.Frontends = slices.Compact(a.before.Frontends)
	a.syncLocked()
	for addr, server := range a.servers {
		if len(was.Backends) > 0 && !slices.Contains(was.Backends, addr) {
			server.judgement, server.since = judgement{}, time.Now()
		}
	}
	a.adoptHostLocked(was.Host)
}

// adoptLeft adds the unknown servers among given, the backends that sockets of this node got. They
// count as servers that left the list now, and as dead until they answer.
func (a *apiServers) adoptLeft(given []netip.AddrPort) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, frontends := time.Now(), a.frontendsLocked()
	for _, addr := range given[:min(len(given), service.MaxAPIServers)] {
		if a.servers[addr] == nil && !slices.Contains(frontends, addr) {
			s := newServer()
			s.since, s.left = now, now
			a.servers[addr] = s
		}
	}
}

// frontends returns the addresses of entry 0, with or without backends.
func (a *apiServers) frontends() []netip.AddrPort {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Concat(a.frontendsLocked(), a.before.Host)
}

// start starts the probes, which end with ctx and are counted by wg. changed is called when the
// result of entry may have changed.
func (a *apiServers) start(ctx context.Context, wg *sync.WaitGroup, run prober, changed func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.run = func(s *server, addr netip.AddrPort) func() {
		ctx, stop := context.WithCancel(ctx)
		p := probe{addr: addr, own: &a.closing.own, ask: s.ask, pace: &a.pace, verify: a.verify,
			names: a.before.Host, mark: a.mark, report: func(o observation) {
				if a.observe(addr, o, time.Now()) {
					changed()
				}
			}}
		wg.Go(func() { run(ctx, p) })
		return stop
	}
	for addr, s := range a.servers {
		s.stop = a.run(s, addr)
	}
}

// syncLocked updates servers to the current candidates and starts and stops their probes.
func (a *apiServers) syncLocked() {
	want := map[netip.AddrPort]bool{}
	known := a.listedLocked()
	if len(known) == 0 {
		known = a.before.Remembered
	}

	for _, addr := range slices.Concat(known, a.before.Configured) {
		want[netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())] = true
	}

	frontends := a.frontendsLocked()
	for _, addr := range frontends {
		delete(want, addr) // entry 0 would have itself as a backend
	}

	for addr, s := range a.servers {
		switch {
		case want[addr]:
			s.left = time.Time{}
		case a.run == nil || slices.Contains(frontends, addr):
			a.forgetLocked(addr)
		case s.left.IsZero():
			s.left = time.Now()
		}
	}

	for addr := range want {
		if a.servers[addr] != nil {
			continue
		}
		s := newServer()
		s.judgement = judgement{answers: true, up: true, use: useGood}
		if a.run != nil {
			s.stop = a.run(s, addr)
		}
		a.servers[addr] = s
	}
}

func (a *apiServers) forgetLocked(addr netip.AddrPort) {
	if stop := a.servers[addr].stop; stop != nil {
		stop()
	}
	delete(a.servers, addr)
}

func (a *apiServers) frontendsLocked() []netip.AddrPort {
	switch {
	case len(a.listed) > 0:
		return a.listed
	case len(a.before.Frontends) > 0:
		return a.before.Frontends
	}
	return a.before.Guessed
}

// entry returns entry 0. Its backends are, for each family, the servers of the best use (see use);
// the others are reserved. A family without servers has no frontend, which could only refuse
// connections.
func (a *apiServers) entry() service.APIServer {
	a.mu.Lock()
	defer a.mu.Unlock()
	best, all := map[bool]use{}, map[bool]int{}
	for addr, s := range a.servers {
		if s.left.IsZero() {
			v6 := addr.Addr().Is6()
			best[v6] = max(best[v6], s.use)
			all[v6]++
		}
	}

	var e service.APIServer
	for addr, s := range a.servers {
		switch {
		case !s.left.IsZero():
		case s.use == best[addr.Addr().Is6()]:
			e.Backends = append(e.Backends, addr)
		default:
			e.Reserved = append(e.Reserved, addr)
		}
	}

	for _, frontend := range a.frontendsLocked() {
		if all[frontend.Addr().Unmap().Is6()] > 0 {
			e.Frontends = append(e.Frontends, frontend)
		}
	}

	slices.SortFunc(e.Backends, netip.AddrPort.Compare)
	slices.SortFunc(e.Reserved, netip.AddrPort.Compare)
	e.Host = a.hostLocked()
	return e
}

func (a *apiServers) putService(s service.Service) {
	if s.Name != apiService {
		return
	}
	var frontends []netip.AddrPort
	for _, p := range s.Ports {
		for _, addr := range s.ClusterIPs {
			if p.Name == apiPort && p.Protocol == service.TCP {
				frontends = append(frontends, netip.AddrPortFrom(addr, p.Port))
			}
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.listed = frontends
	a.syncLocked()
}

func (a *apiServers) putSlice(s service.Slice) {
	if s.Service != apiService {
		return
	}
	var servers []netip.AddrPort
	for _, p := range s.Ports {
		for _, ep := range s.Endpoints {
			if p.Name == apiPort && p.Protocol == service.TCP && ep.Ready {
				servers = append(servers, netip.AddrPortFrom(ep.Addr, p.Port))
			}
		}
	}
	a.list(func() { a.slices[s.Name] = servers })
}

func (a *apiServers) deleteSlice(owner service.Name, slice string) {
	if owner != apiService {
		return
	}
	a.list(func() { delete(a.slices, slice) })
}

// list calls change, which changes the listed servers. It remembers the servers that were listed
// before, for a list that becomes empty.
func (a *apiServers) list(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if was := a.listedLocked(); len(was) > 0 {
		a.before.Remembered = was
	}
	change()
	a.syncLocked()
}

func (a *apiServers) listedLocked() []netip.AddrPort {
	return slices.Concat(slices.Collect(maps.Values(a.slices))...)
}
