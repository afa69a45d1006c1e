package proxy

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/pkg/service"
)

const (
	// deadAfter is how long a server has not answered when connections to it are closed. closeEvery
	// is how often those are looked for: together less than the 45 s after which client-go's own
	// pings find a connection dead.
	deadAfter, closeEvery = 25 * time.Second, 10 * time.Second
	// A server that left the list is watched on, since one that died is taken out of it before
	// deadAfter: until connections to it were looked for closings times, or while it answers for
	// leftFor.
	closings, leftFor = 3, 2 * time.Minute
)

// APIServers are what is known of the API servers before they are listed.
type APIServers struct {
	// Frontends are addresses of their service that are sure; those that are in the maps are as
	// good.
	Frontends []netip.AddrPort
	// Guessed is what their service may have. It counts only when nothing is sure.
	Guessed []netip.AddrPort
	// Configured are servers whatever the lists say.
	Configured []netip.AddrPort
	// Remembered are servers until they have been listed, and again while the list is empty: the
	// last server takes itself out of it when it ends, and has to be found when it comes back.
	Remembered []netip.AddrPort
}

// apiService is the service of the API servers, and apiPort the name of its port; they keep its
// endpoints themselves.
var (
	apiService = service.Name{Namespace: "default", Name: "kubernetes"}
	apiPort    = "https"
)

// apiServers decides what entry 0 is.
type apiServers struct {
	mu     sync.Mutex // guards the fields below
	before APIServers
	listed []netip.AddrPort // of the list, without configuration
	slices map[string][]netip.AddrPort
	// servers are the candidates; each has a probe once run is set.
	servers map[netip.AddrPort]*server
	run     func(addr netip.AddrPort) (stop func())
}

// server is a candidate.
type server struct {
	up    bool
	since time.Time // zero until its probe has said something; it counts as up
	stop  func()
	left  time.Time // when it left the list, zero is not: one that left is no part of entry 0
	swept time.Time // when connections to it were last closed
	times int       // how often they were, without an error, since it does not answer
}

func newAPIServers(before APIServers) *apiServers {
	a := &apiServers{before: before, slices: map[string][]netip.AddrPort{},
		servers: map[netip.AddrPort]*server{}}
	a.syncLocked()
	return a
}

// adopt remembers the servers in the maps. Those that the last process had found dead, so that the
// maps have others only, are dead until they answer.
func (a *apiServers) adopt(s service.State) {
	a.mu.Lock()
	defer a.mu.Unlock()
	was := s.APIServer()
	a.before.Remembered = slices.Concat(a.before.Remembered, was.Backends)
	a.before.Frontends = slices.Concat(a.before.Frontends, was.Frontends)
	slices.SortFunc(a.before.Frontends, netip.AddrPort.Compare)
	a.before.Frontends = slices.Compact(a.before.Frontends)
	a.syncLocked()
	for addr, server := range a.servers {
		if len(was.Backends) > 0 && !slices.Contains(was.Backends, addr) {
			server.up, server.since = false, time.Now()
		}
	}
}

// adoptLeft watches servers that programs here were given and that are unknown now, as if
// they had left the list now: they are dead until they answer.
func (a *apiServers) adoptLeft(given []netip.AddrPort) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, frontends := time.Now(), a.frontendsLocked()
	for _, addr := range given[:min(len(given), service.MaxAPIServers)] {
		if a.servers[addr] == nil && !slices.Contains(frontends, addr) {
			a.servers[addr] = &server{since: now, left: now}
		}
	}
}

// frontends are the addresses of entry 0, whether it has servers or not.
func (a *apiServers) frontends() []netip.AddrPort {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.frontendsLocked())
}

// start begins to probe; changed is told when entry may have become another. Probes end with ctx,
// counted by wg.
func (a *apiServers) start(ctx context.Context, wg *sync.WaitGroup, probe prober, changed func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.run = func(addr netip.AddrPort) func() {
		ctx, stop := context.WithCancel(ctx)
		wg.Go(func() {
			probe(ctx, addr, func(up bool) {
				if a.report(addr, up) {
					changed()
				}
			})
		})
		return stop
	}
	for addr, s := range a.servers {
		s.stop = a.run(addr)
	}
}

// report takes what a probe found and is whether that is new.
func (a *apiServers) report(addr netip.AddrPort, up bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.servers[addr]
	if s == nil || s.up == up && !s.since.IsZero() {
		return false
	}
	s.up, s.since, s.swept, s.times = up, time.Now(), time.Time{}, 0
	return true
}

// syncLocked makes servers the candidates that there are.
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
		delete(want, addr) // would lead back to itself
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
		s := &server{up: true}
		if a.run != nil {
			s.stop = a.run(addr)
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

// entry is entry 0: of each family the servers that answer or have not been asked yet, or all when
// none does. Without any there is no frontend of that family: it could only refuse.
func (a *apiServers) entry() service.APIServer {
	a.mu.Lock()
	defer a.mu.Unlock()
	up, all := map[bool][]netip.AddrPort{}, map[bool][]netip.AddrPort{}
	for addr, s := range a.servers {
		if !s.left.IsZero() {
			continue
		}
		v6 := addr.Addr().Is6()
		all[v6] = append(all[v6], addr)
		if s.up {
			up[v6] = append(up[v6], addr)
		}
	}

	var e service.APIServer
	for _, v6 := range []bool{false, true} {
		backends := up[v6]
		if len(backends) == 0 {
			backends = all[v6]
		}
		e.Backends = append(e.Backends, backends...)
	}

	for _, frontend := range a.frontendsLocked() {
		if len(all[frontend.Addr().Unmap().Is6()]) > 0 {
			e.Frontends = append(e.Frontends, frontend)
		}
	}

	slices.SortFunc(e.Backends, netip.AddrPort.Compare)
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

// list makes a change of what is listed; the last servers of a list that becomes empty are
// remembered.
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

// status returns the candidates, sorted.
func (a *apiServers) status() []APIServer {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []APIServer
	for addr, s := range a.servers {
		if s.left.IsZero() {
			out = append(out, APIServer{Addr: addr, Up: s.up, Since: s.since})
		}
	}
	slices.SortFunc(out, func(x, y APIServer) int { return x.Addr.Compare(y.Addr) })
	return out
}

// dead are the servers to which connections are to be closed now, while another answers. It forgets
// those that left and are done with.
func (a *apiServers) dead(now time.Time) []netip.AddrPort {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []netip.AddrPort
	alive := false
	for addr, s := range a.servers {
		if !s.left.IsZero() && (s.times >= closings || s.up && now.Sub(s.left) >= leftFor) {
			a.forgetLocked(addr)
			continue
		}
		alive = alive || s.left.IsZero() && s.up && !s.since.IsZero()
		if !s.up && now.Sub(s.since) >= deadAfter && now.Sub(s.swept) >= closeEvery {
			out = append(out, addr)
		}
	}
	if !alive {
		return nil
	}
	for _, addr := range out {
		a.servers[addr].swept = now
	}
	return out
}

// closed notes that connections to a dead server were closed.
func (a *apiServers) closed(addr netip.AddrPort) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.servers[addr]; s != nil && !s.up {
		s.times++
	}
}

// closeDead closes what is still connected to servers that have gone, until ctx ends.
func (p *Proxy) closeDead(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	warned := map[netip.AddrPort]bool{}
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			for _, addr := range p.api.dead(now) {
				n, err := p.closing(addr)
				if err != nil && !warned[addr] {
					p.log.Warn("connections to an API server that does not answer stay until "+
						"their programs give up", "server", addr, "error", err)
				}
				if warned[addr] = err != nil; err == nil {
					p.api.closed(addr)
				}
				if n > 0 {
					p.log.Info("closed connections to an API server that does not answer",
						"server", addr, "connections", n)
				}
			}
		}
	}
}
