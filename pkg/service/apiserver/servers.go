package apiserver

import (
	"context"
	"crypto/tls"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/apiserver/prober"
	"github.com/kubeveil/kubeveil/pkg/service/planner"
)

// Known holds the API servers that are known before the first list.
type Known struct {
	// Frontends are the confirmed addresses of their service. Addresses in the maps count too.
	Frontends []netip.AddrPort
	// Guessed are probable addresses of their service, for use while none is confirmed.
	Guessed []netip.AddrPort
	// Configured are servers that count in addition to the list.
	Configured []netip.AddrPort
	// Remembered are the servers to use while the list is empty or not read yet. The last API
	// server removes itself from the list when it ends, and clients must find it when it returns.
	Remembered []netip.AddrPort
	// Host are addresses that lead the node's own TCP sockets to the servers whose certificates
	// name them (services.apiFrontends). Only the first service.MaxHostFrontends count.
	Host []netip.AddrPort
}

// apiService is the service of the API servers, apiPort the name of its port. The API servers write
// its endpoints themselves.
var (
	apiService = service.Name{Namespace: "default", Name: "kubernetes"}
	apiPort    = "https"
)

// ServersConfig holds the settings and dependencies of Servers.
type ServersConfig struct {
	// Node is this node's name in Kubernetes. It spreads the closing of connections.
	Node  string
	Known Known
	// Close closes TCP connections of this node and its pods to a server that does not answer. took
	// is the CPU time of the search. If Close is nil, no connection is closed.
	Close func(Closing) (closed int, took time.Duration, err error)
	// Retransmitting returns the servers to which a selected connection of this node or its pods
	// retransmits. If it is nil, lost servers are found by pings alone.
	Retransmitting func(Sockets) ([]netip.AddrPort, error)
	// Count returns the number of selected connections of this node and its pods to each server. If
	// it is nil, they are not counted.
	Count func(Sockets) (map[netip.AddrPort]int, error)
	// Verify verifies the certificate of a server. If it is nil, none is verified.
	Verify func(tls.ConnectionState) error
	// Mark is the mark (SO_MARK) of the sockets of probes, by which the programs exempt them from
	// Known.Host. Setting a mark needs CAP_NET_ADMIN. Zero means no mark.
	Mark uint32
	// Probe probes a server and reports whether it answers, again and again until ctx ends. Nil
	// means pings, certificates and /readyz over connections of TLS. Tests replace it.
	Probe func(ctx context.Context, server netip.AddrPort, report func(answers bool))
	// Log receives changes and problems. If it is nil, they are discarded.
	Log *slog.Logger
}

// Servers probes the API servers and decides the frontends and backends of entry 0. Make it with
// New, then call Start once. All other methods may be called at any time from any goroutine.
type Servers struct {
	o ServersConfig
	// probe probes a server and reports again and again until ctx ends.
	probe func(ctx context.Context, t prober.Target)

	mu     sync.Mutex // guards the fields below, except pace and what closings excludes
	before Known
	listed []netip.AddrPort // frontends of the listed service
	slices map[string][]netip.AddrPort
	// servers are the candidates. Each has a probe once run is set.
	servers map[netip.AddrPort]*server
	run     func(s *server, addr netip.AddrPort) (stop func())
	closing closings
	pace    prober.Pace
}

// server is a candidate for a backend of entry 0, or a former candidate that left the list.
type server struct {
	judgement
	// since is when up last changed, or when it stopped answering if that was later; zero before
	// the first probe result. heard is the value of answers at that time.
	since time.Time
	heard bool
	// probed reports whether this process has a probe result. If not, up may come from the last
	// process.
	probed      bool
	stop        func()
	left        time.Time     // when it left the list and entry 0; zero while it is listed
	swept       time.Time     // when all connections to it were last closed
	searched    bool          // whether stuck ones were searched for since it became silent
	next        time.Time     // when stuck connections are searched for again
	full        time.Time     // when all namespaces may be searched again
	times       int           // how often all were closed without an error since it stopped answering
	asked       time.Time     // when the last value was sent to ask
	connections int           // of the node and its pods at the last count, without probes
	ask         chan struct{} // a value makes the probe ping at once; capacity 1
}

func newServer() *server { return &server{ask: make(chan struct{}, 1)} }

// New returns Servers with the servers of Known only. Start starts their probes.
func New(o ServersConfig) *Servers {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Close == nil {
		o.Close = func(Closing) (int, time.Duration, error) { return 0, 0, nil }
	}

	a := &Servers{o: o, probe: prober.Run, before: o.Known,
		slices:  map[string][]netip.AddrPort{},
		servers: map[netip.AddrPort]*server{}, closing: newClosings(o.Node)}
	if o.Probe != nil {
		a.probe = func(ctx context.Context, t prober.Target) {
			o.Probe(ctx, t.Addr, func(answers bool) {
				t.Report(prober.Observation{Up: answers})
			})
		}
	}
	a.before.Host = hostAddrs(o.Known.Host)
	a.syncLocked()
	return a
}

// Adopt remembers the servers in the maps. If the maps have servers, a candidate that they lack
// counts as dead until it answers: the last process had found it dead.
func (a *Servers) Adopt(s planner.MapContent) {
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

// AdoptLeft adds the unknown servers among given, the backends that sockets of this node got. They
// count as servers that left the list now, and as dead until they answer.
func (a *Servers) AdoptLeft(given []netip.AddrPort) {
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

// Frontends returns the addresses of entry 0, with or without backends.
func (a *Servers) Frontends() []netip.AddrPort {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Concat(a.frontendsLocked(), a.before.Host)
}

// Start starts the probes and the closing of connections, which end with ctx. changed is called
// when the result of Entry may have changed. wait returns once all have ended. After Start, a
// changed list starts and stops probes.
func (a *Servers) Start(ctx context.Context, changed func()) (wait func()) {
	var running sync.WaitGroup
	a.startProbes(ctx, &running, changed)
	running.Go(func() { a.closeDead(ctx) })
	if a.o.Retransmitting != nil {
		running.Go(func() { a.askByEvidence(ctx) })
	}
	if a.o.Count != nil {
		running.Go(func() { a.countConnections(ctx) })
	}
	return running.Wait
}

// SetNodes sets the number of nodes that probe the API servers, this one among them. More nodes
// probe less often.
func (a *Servers) SetNodes(n int) { a.pace.SetNodes(n) }

// startProbes starts the probes, which wg counts.
func (a *Servers) startProbes(ctx context.Context, wg *sync.WaitGroup, changed func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.run = func(s *server, addr netip.AddrPort) func() {
		ctx, stop := context.WithCancel(ctx)
		t := prober.Target{Addr: addr, Own: &a.closing.own, Ask: s.ask, Pace: &a.pace,
			Verify: a.o.Verify, Names: a.before.Host, Mark: a.o.Mark,
			Report: func(o prober.Observation) {
				if a.observe(addr, o, time.Now()) {
					changed()
				}
			}}
		wg.Go(func() { a.probe(ctx, t) })
		return stop
	}
	for addr, s := range a.servers {
		s.stop = a.run(s, addr)
	}
}

// syncLocked updates servers to the current candidates and starts and stops their probes.
func (a *Servers) syncLocked() {
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
		delete(want, addr) // otherwise entry 0 would be its own backend
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

func (a *Servers) forgetLocked(addr netip.AddrPort) {
	if stop := a.servers[addr].stop; stop != nil {
		stop()
	}
	delete(a.servers, addr)
}

func (a *Servers) frontendsLocked() []netip.AddrPort {
	switch {
	case len(a.listed) > 0:
		return a.listed
	case len(a.before.Frontends) > 0:
		return a.before.Frontends
	}
	return a.before.Guessed
}

// Entry returns entry 0. Its backends are, for each family, the servers with the best rank (see
// use). The other servers are reserved. A family without servers has no frontend, because a
// frontend could only refuse connections.
func (a *Servers) Entry() service.APIServer {
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

// PutService takes the frontends of the API servers' own service. It ignores all others.
func (a *Servers) PutService(s service.Service) {
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

// PutSlice adds or replaces a slice of API servers. It ignores slices of other services.
func (a *Servers) PutSlice(s service.Slice) {
	if s.Service != apiService {
		return
	}
	var servers []netip.AddrPort
	for _, p := range s.Ports {
		for ep := range s.Endpoints.All() {
			if p.Name == apiPort && p.Protocol == service.TCP && ep.Ready {
				servers = append(servers, netip.AddrPortFrom(ep.Addr, p.Port))
			}
		}
	}
	a.list(func() { a.slices[s.Name] = servers })
}

// DeleteSlice removes a slice of API servers.
func (a *Servers) DeleteSlice(owner service.Name, slice string) {
	if owner != apiService {
		return
	}
	a.list(func() { delete(a.slices, slice) })
}

// list calls change, which changes the listed servers. It remembers the servers that were listed
// before, for a list that becomes empty.
func (a *Servers) list(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if was := a.listedLocked(); len(was) > 0 {
		a.before.Remembered = was
	}
	change()
	a.syncLocked()
}

func (a *Servers) listedLocked() []netip.AddrPort {
	return slices.Concat(slices.Collect(maps.Values(a.slices))...)
}
