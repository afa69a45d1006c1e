package apiserver

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/internal/poll"
	"github.com/kubeveil/kubeveil/pkg/service/apiserver/prober"
)

const (
	// lookEvery is the pause between two looks for retransmissions. A look takes at most one part
	// in lookShare of a core.
	lookEvery, lookShare = 250 * time.Millisecond, 50
	// askPause is the least time between two probes of a server that retransmissions cause.
	askPause = time.Second
	// countEvery is the pause between two counts of connections. A count takes at most one part in
	// countShare of a core.
	countEvery, countShare = 30 * time.Second, 200
)

// Sockets selects local connections to API servers.
type Sockets struct {
	Servers []netip.AddrPort
	// Spare reports whether a socket, by its cookie (SO_COOKIE), is a probe and does not count.
	Spare func(cookie uint64) bool
}

// Until ctx ends, askByEvidence looks for local connections that retransmit to a server, and makes
// the probe of such a server ping at once. It looks only in clusters so large that pings alone
// would take more than a second to find a lost server, and only where another server of the family
// answers: without one, no connection is closed.
func (a *Servers) askByEvidence(ctx context.Context) {
	pause, warned := lookEvery, false
	for {
		if poll.Pause(ctx, pause) != nil {
			return
		}
		pause = lookEvery
		sockets := a.sockets(true)
		sockets.Servers = replaceable(sockets.Servers)
		if a.pace.Ping() <= prober.LeastPing || len(sockets.Servers) == 0 {
			continue
		}

		began := time.Now()
		silent, err := a.o.Retransmitting(sockets)
		a.ask(silent, time.Now())
		pause = max(lookEvery, lookShare*time.Since(began))
		if err != nil && !warned {
			a.o.Log.Warn("veild notices the loss of an API server later, because it cannot read "+
				"retransmissions",
				"error", err)
		}
		warned = err != nil
	}
}

// replaceable returns those of servers that are not the only one of their family.
func replaceable(servers []netip.AddrPort) []netip.AddrPort {
	families := map[bool]int{}
	for _, s := range servers {
		families[s.Addr().Is4()]++
	}
	return slices.DeleteFunc(servers, func(s netip.AddrPort) bool {
		return families[s.Addr().Is4()] < 2
	})
}

// countConnections counts the connections to each server until ctx ends.
func (a *Servers) countConnections(ctx context.Context) {
	pause, warned := time.Second, false // askByEvidence needs a first count soon
	for {
		if poll.Pause(ctx, pause) != nil {
			return
		}
		began := time.Now()
		count, err := a.o.Count(a.sockets(false))
		pause = max(countEvery, countShare*time.Since(began))
		if err != nil && !warned {
			a.o.Log.Warn("not all connections to API servers could be counted", "error", err)
		}
		warned = err != nil
		a.mu.Lock()
		for addr, s := range a.servers {
			s.connections = count[addr]
		}
		a.mu.Unlock()
	}
}

// sockets selects the connections to all servers, or to those that answer.
func (a *Servers) sockets(up bool) Sockets {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := Sockets{Spare: a.closing.own.Has}
	for addr, server := range a.servers {
		if server.up || !up {
			s.Servers = append(s.Servers, addr)
		}
	}
	slices.SortFunc(s.Servers, netip.AddrPort.Compare)
	return s
}

// ask makes the probes of servers ping at once, each at most once in askPause.
func (a *Servers) ask(servers []netip.AddrPort, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, addr := range servers {
		s := a.servers[addr]
		if s == nil || now.Sub(s.asked) < askPause {
			continue
		}
		s.asked = now
		select {
		case s.ask <- struct{}{}:
		default:
		}
	}
}
