package apiserver

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/apiserver/prober"
)

// sweeps returns the servers all of whose connections are due.
func sweeps(a *Servers, now time.Time) (out []netip.AddrPort) {
	for _, c := range a.due(now) {
		if !c.Stuck {
			out = append(out, c.Server)
		}
	}
	return out
}

// dueLine returns the closings that are due at each of these times after the start.
func dueLine(a *Servers, began time.Time, after ...time.Duration) (out []string) {
	for _, d := range after {
		text := "-"
		for _, c := range a.due(began.Add(d)) {
			a.closed(c, 1, nil, 0)
			text = "rest"
			if c.Stuck {
				text = "stuck"
			}
		}
		out = append(out, text)
	}
	return out
}

// doubt makes a server answer with a wrong certificate while the certificate of another server is
// right.
func doubt(a *Servers, wrong, right string) {
	a.observe(netip.MustParseAddrPort(right), prober.Observation{Up: true,
		Trust: prober.Trusted}, time.Now())
	a.observe(netip.MustParseAddrPort(wrong), prober.Observation{Up: true,
		Trust: prober.TrustRefused},
		time.Now())
}

func TestConnectionsToSilentServersAreDue(t *testing.T) {
	const gone, other, third, v6 = "198.18.0.1:6443", "198.18.0.2:6443", "198.18.0.3:6443",
		"[2001:db8::1]:6443"
	say := func(a *Servers, addr string, up bool) {
		a.report(netip.MustParseAddrPort(addr), up)
	}
	for name, c := range map[string]struct {
		servers []string
		steps   func(a *Servers)
		want    []string
	}{
		// after 0, 0.1 s, 0.3 s, the node's delay, 1 s more, 10 s more, 25 s, 36 s
		"another answers": {[]string{gone, other}, func(a *Servers) {
			say(a, other, true)
			say(a, gone, false)
		}, []string{"stuck", "-", "stuck", "rest", "-", "rest", "rest", "rest"}},
		"no other answers": {[]string{gone, other}, func(a *Servers) {
			say(a, gone, false)
		}, []string{"-", "-", "-", "-", "-", "-", "-", "-"}},
		"only one of another family answers": {[]string{gone, v6}, func(a *Servers) {
			say(a, v6, true)
			say(a, gone, false)
		}, []string{"-", "-", "-", "-", "-", "-", "-", "-"}},
		"fewer than half answer": {[]string{gone, other, third}, func(a *Servers) {
			say(a, other, true)
			say(a, gone, false)
		}, []string{"-", "-", "-", "-", "-", "-", "rest", "rest"}},
		"it answers again": {[]string{gone, other}, func(a *Servers) {
			say(a, other, true)
			say(a, gone, false)
			say(a, gone, true)
		}, []string{"-", "-", "-", "-", "-", "-", "-", "-"}},
		"the maps still lead to it": {[]string{gone, other}, func(a *Servers) {
			say(a, other, true)
			say(a, gone, false)
			a.Written(service.APIServer{Backends: nettest.AddrPorts(gone, other)})
		}, []string{"-", "-", "-", "-", "-", "-", "rest", "rest"}},
		"its certificate is wrong and another's is right": {[]string{gone, other},
			func(a *Servers) {
				say(a, other, true)
				doubt(a, gone, other)
			}, []string{"-", "-", "-", "-", "-", "-", "-", "-"}},
		"its certificate was wrong, and it falls silent": {[]string{gone, other},
			func(a *Servers) {
				say(a, other, true)
				doubt(a, gone, other)
				s := a.servers[netip.MustParseAddrPort(gone)]
				s.since = s.since.Add(-time.Hour)
				say(a, gone, false)
			}, []string{"stuck", "-", "stuck", "rest", "-", "rest", "rest", "rest"}},
		"the last process found it dead": {[]string{gone, other}, func(a *Servers) {
			say(a, other, true)
			s := a.servers[netip.MustParseAddrPort(gone)]
			s.judgement, s.since = judgement{}, time.Now()
		}, []string{"-", "-", "-", "-", "-", "-", "rest", "rest"}},
	} {
		t.Run(name, func(t *testing.T) {
			a := newServers(Known{Frontends: nettest.AddrPorts(apiFrontend),
				Remembered: nettest.AddrPorts(c.servers...)})
			c.steps(a)

			began, delay := time.Now(), a.closing.delay(0)
			got := dueLine(a, began, 0, 100*time.Millisecond, 300*time.Millisecond, delay,
				delay+time.Second, delay+closeEvery, deadAfter+time.Second,
				deadAfter+time.Second+closeEvery)
			if !slices.Equal(got, c.want) {
				t.Errorf("due %v, want %v", got, c.want)
			}
		})
	}
}

// While no server answers, entry 0 leads again to servers whose connections were closed. Once one
// server answers, connections to the others that began meanwhile are closed at once, not 10 s after
// the last closing.
func TestConnectionsOfAnOutageAreClosed(t *testing.T) {
	const gone, other = "198.18.0.1:6443", "198.18.0.2:6443"
	a := newServers(Known{Frontends: nettest.AddrPorts(apiFrontend),
		Remembered: nettest.AddrPorts(gone, other)})
	say := func(addr string, up bool) {
		a.report(netip.MustParseAddrPort(addr), up)
		a.Written(a.Entry())
	}
	say(other, true)
	say(gone, false)
	began, delay := time.Now(), a.closing.delay(0)
	if got := dueLine(a, began, 0, delay, delay+time.Second); !slices.Equal(got,
		[]string{"stuck", "rest", "-"}) {
		t.Fatalf("due %v", got)
	}

	say(other, false)
	if got := dueLine(a, began, delay+2*time.Second); got[0] != "-" {
		t.Errorf("while no server answers, closings %v are due", got)
	}
	say(other, true)
	if got := dueLine(a, began, delay+3*time.Second, delay+4*time.Second); !slices.Equal(got,
		[]string{"rest", "-"}) {
		t.Errorf("after an outage of all servers closings %v are due", got)
	}
}

func TestNodesCloseAtTheirOwnTimes(t *testing.T) {
	for nodes, spread := range map[int64]time.Duration{
		0:           restSpread, // not known yet
		1:           time.Second / mostClosing,
		mostClosing: time.Second,
		10_000:      restSpread,
	} {
		seen := map[time.Duration]bool{}
		for i := range 100 {
			c := newClosings(fmt.Sprintf("node-%d", i))
			delay := c.delay(nodes) - restAfter
			if delay < 0 || delay >= spread {
				t.Errorf("of %d nodes, node-%d closes after %v", nodes, i, restAfter+delay)
			}
			seen[delay/(spread/10)] = true
		}
		if len(seen) < 8 {
			t.Errorf("of %d nodes, a hundred close in %d of ten parts of the time", nodes, len(seen))
		}
	}
}

// A first search of all namespaces of a full node must not delay further searches, which search few
// namespaces, because most sockets retransmit for the second time after the first search. A tick
// may come slightly early.
func TestStuckConnectionsAreClosedAtEachTurn(t *testing.T) {
	const gone, other = "198.18.0.1:6443", "198.18.0.2:6443"
	a := newServers(Known{Frontends: nettest.AddrPorts(apiFrontend),
		Remembered: nettest.AddrPorts(gone, other)})
	a.report(netip.MustParseAddrPort(other), true)
	a.report(netip.MustParseAddrPort(gone), false)
	began := time.Now()

	for i := range int(restAfter / stuckEvery) {
		late := time.Duration(i%2) * -10 * time.Millisecond
		due := a.due(began.Add(time.Duration(i)*stuckEvery + late))
		if len(due) != 1 || !due[0].Stuck || due[0].Again != (i > 0) {
			t.Fatalf("at turn %d, %+v is due", i, due)
		}
		took := 10 * time.Millisecond
		if i == 0 {
			took = 100 * time.Millisecond
		}
		a.closed(due[0], 0, nil, took)
	}
}

// Slow searches are rare, and a failed search is not counted.
func TestSearchesTakeAPartOfTheTime(t *testing.T) {
	const gone = "198.18.0.1:6443"
	a := newServers(Known{Frontends: nettest.AddrPorts(apiFrontend),
		Remembered: nettest.AddrPorts(gone, "198.18.0.2:6443")})
	a.report(netip.MustParseAddrPort("198.18.0.2:6443"), true)
	a.report(netip.MustParseAddrPort(gone), false)
	began := time.Now()
	due := a.due(began)
	if len(due) != 1 {
		t.Fatalf("due %v", due)
	}
	a.closed(due[0], 2, nil, 500*time.Millisecond)

	again := a.due(began.Add(stuckEvery))
	if len(again) != 1 {
		t.Fatalf("a first search of 0.5 s holds up the next: %v", again)
	}
	a.closed(again[0], 1, nil, 50*time.Millisecond)
	if got := a.due(began.Add(stuckEvery + 450*time.Millisecond)); got != nil {
		t.Errorf("0.45 s after a search of 50 ms another is due: %v", got)
	}
	if got := a.due(began.Add(stuckEvery + 500*time.Millisecond)); len(got) != 1 {
		t.Errorf("0.5 s after a search of 50 ms none is due")
	}

	a.report(netip.MustParseAddrPort(gone), true)
	a.report(netip.MustParseAddrPort(gone), false)
	if got := a.due(began.Add(900 * time.Millisecond)); got != nil {
		t.Errorf("a server that alternates between up and silent is searched for again: %v", got)
	}
	rest := a.due(began.Add(6 * time.Second))[0]
	a.closed(rest, 2, errors.New("one namespace"), 0)
	if s := a.servers[rest.Server]; s.times != 0 {
		t.Error("a failed search is counted")
	}
	if got := a.Status().Closed; got != (Closed{Stuck: 3, Rest: 2}) {
		t.Errorf("counted %+v", got)
	}
}
