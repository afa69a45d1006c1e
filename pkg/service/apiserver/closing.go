package apiserver

import (
	"context"
	"hash/fnv"
	"net/netip"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/apiserver/prober"
)

const (
	// Clients that wait for a server that does not answer gain nothing by waiting. Their
	// connections are closed at once, then every stuckEvery until all others are closed too. A turn
	// may come tickSlack early. First searches take at most one part in searchShare of a core, and
	// so do further searches.
	stuckEvery, searchShare = 250 * time.Millisecond, 10
	tickSlack               = stuckEvery / 10
	// The other connections are closed restAfter to restAfter+restSpread after the server counts as
	// silent. Each node has its own time, so that not all clients reconnect at once. In a small
	// cluster, the spread is shorter: mostClosing nodes close per second. restAfter leaves a server
	// that missed one ping the time to answer again.
	restAfter, restSpread = time.Second, 3500 * time.Millisecond
	mostClosing           = 300
	// deadAfter replaces restAfter if most servers of a family are silent. The fault may then be on
	// this node, or all clients would overload the remaining servers.
	deadAfter = 25 * time.Second
	// closeEvery is the pause between further searches for connections.
	closeEvery = 10 * time.Second
	// A dead server may leave the list before its connections are closed, so a server that left is
	// still probed. That ends after all its connections were closed mostCloses times, or if it
	// answers leftFor after it left.
	mostCloses, leftFor = 3, 2 * time.Minute
)

// Closing selects connections to an API server that does not answer.
type Closing struct {
	Server netip.AddrPort
	// Stuck limits it to connections that wait for the server: those that connect, and those whose
	// data were retransmitted twice without an acknowledgement.
	Stuck bool
	// Again reports whether these were closed before, since the server stopped answering. Then only
	// namespaces in which that search found connections can have more, because entry 0 does not
	// lead to the server any more.
	Again bool
	// Spare reports whether a socket, by its cookie (SO_COOKIE), is a probe and stays open.
	Spare func(cookie uint64) bool
	// Still reports whether the server is still without an answer. Once it returns false, no more
	// connections are to be closed.
	Still func() bool

	began time.Time
}

// Closed counts closed connections to servers that did not answer.
type Closed struct {
	// Stuck counts connections that waited for the server, Rest all others.
	Stuck, Rest uint64
}

// closings decides which connections to API servers are closed when. Its fields are guarded by the
// mutex of its Servers, except own and wake.
type closings struct {
	own  prober.Cookies
	wake chan struct{} // capacity 1
	part int64         // this node's place in the spread of closing times, in thousandths
	// inForce are the backends of entry 0 in the maps. While a server is among them, a program
	// whose connection is closed could connect to it again.
	inForce []netip.AddrPort
	closed  Closed
}

func newClosings(node string) closings {
	h := fnv.New64a()
	h.Write([]byte(node))
	return closings{wake: make(chan struct{}, 1), part: int64(h.Sum64() % 1000)}
}

// delay returns the time from the moment that a server counts as silent until all connections to it
// are closed, in a cluster of that many nodes. 0 nodes mean that the number is unknown.
func (c *closings) delay(nodes int64) time.Duration {
	spread := restSpread
	if nodes > 0 {
		spread = min(spread, time.Duration(nodes)*time.Second/mostClosing)
	}
	return restAfter + spread*time.Duration(c.part)/1000
}

// poke makes closeDead search at once.
func (c *closings) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// turnout counts the listed servers of a family and those that answer.
type turnout struct{ up, listed int }

// due returns the connections that must be closed now. It returns none to servers of a family in
// which no other server answers. It forgets servers that left the list and need no probe any more.
func (a *Servers) due(now time.Time) []Closing {
	a.mu.Lock()
	defer a.mu.Unlock()
	turnouts := map[bool]turnout{}
	for addr, s := range a.servers {
		if !s.left.IsZero() && (s.times >= mostCloses || s.answers && now.Sub(s.left) >= leftFor) {
			a.forgetLocked(addr)
			continue
		}
		if t := turnouts[addr.Addr().Is6()]; s.left.IsZero() {
			t.listed++
			if s.up && !s.since.IsZero() {
				t.up++
			}
			turnouts[addr.Addr().Is6()] = t
		}
	}

	var out []Closing
	for addr, s := range a.servers {
		all, stuck := a.dueLocked(addr, s, turnouts[addr.Addr().Is6()], now)
		if !all && !stuck {
			continue
		}
		if all {
			s.swept = now
		}
		out = append(out, Closing{Server: addr, Stuck: !all, Again: stuck && s.searched,
			Spare: a.closing.own.Has, Still: func() bool { return a.isSilent(addr) }, began: now})
		s.searched, s.next = true, now.Add(stuckEvery-tickSlack)
	}
	return out
}

// dueLocked reports whether all or the stuck connections to a server must be closed now. It returns
// false for a server that answers, regardless of its certificate: clients may trust another CA.
func (a *Servers) dueLocked(addr netip.AddrPort, s *server, t turnout,
	now time.Time) (all, stuck bool) {
	if s.answers || t.up == 0 {
		return false, false
	}

	silent := now.Sub(s.since)
	again := now.Sub(s.swept) >= closeEvery && !now.Before(s.full)
	if silent >= deadAfter {
		return again, false
	}
	if !s.probed || 2*t.up < t.listed || slices.Contains(a.closing.inForce, addr) {
		return false, false
	}
	if again && silent >= a.closing.delay(a.pace.Nodes()) {
		return true, false
	}
	next := s.next
	if !s.searched {
		next = s.full
	}
	return false, s.swept.IsZero() && !now.Before(next)
}

func (a *Servers) isSilent(addr netip.AddrPort) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.servers[addr]
	return s != nil && !s.answers
}

// Written records that entry 0 is in the maps. Connections to a silent server among its backends
// are searched for again, even if all were closed just before.
func (a *Servers) Written(e service.APIServer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closing.inForce = slices.Clone(e.Backends)
	for _, h := range e.Host {
		a.closing.inForce = append(a.closing.inForce, h.Backends...)
	}
	for _, addr := range a.closing.inForce {
		if s := a.servers[addr]; s != nil && !s.answers {
			s.swept, s.searched = time.Time{}, false
		}
	}
	a.closing.poke()
}

// closed records a search for connections to a dead server. took is its CPU time.
func (a *Servers) closed(c Closing, n int, err error, took time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c.Stuck {
		a.closing.closed.Stuck += uint64(n)
	} else {
		a.closing.closed.Rest += uint64(n)
	}

	s := a.servers[c.Server]
	if s == nil {
		return
	}
	if pause := c.began.Add(searchShare * took); !c.Again {
		s.full = pause // a server that alternates between up and silent costs no more
	} else if pause.After(s.next) {
		s.next = pause
	}
	if !c.Stuck && err == nil && !s.answers {
		s.times++
	}
}

// closeDead closes connections to API servers that do not answer until ctx ends.
func (a *Servers) closeDead(ctx context.Context) {
	tick := time.NewTicker(stuckEvery)
	defer tick.Stop()
	warned := map[netip.AddrPort]bool{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-a.closing.wake:
		}

		for _, c := range a.due(time.Now()) {
			n, took, err := a.o.Close(c)
			a.closed(c, n, err, took)
			if err != nil && !warned[c.Server] {
				a.o.Log.Warn("connections to an API server that does not answer could not be "+
					"closed; they end when their programs give up", "server", c.Server,
					"error", err)
			}
			warned[c.Server] = err != nil
			if n > 0 {
				a.o.Log.Info("closed connections to an API server that does not answer",
					"server", c.Server, "connections", n, "waiting", c.Stuck)
			}
		}
	}
}
