package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/pkg/service"
)

// sweeps returns the servers all of whose connections are due.
func sweeps(a *apiServers, now time.Time) (out []netip.AddrPort) {
	for _, c := range a.due(now) {
		if !c.Stuck {
			out = append(out, c.Server)
		}
	}
	return out
}

// dueLine is what is due at each of some times after the start.
func dueLine(a *apiServers, began time.Time, after ...time.Duration) (out []string) {
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

func TestConnectionsToSilentServersAreDue(t *testing.T) {
	const gone, other, third, v6 = "198.18.0.1:6443", "198.18.0.2:6443", "198.18.0.3:6443",
		"[2001:db8::1]:6443"
	say := func(a *apiServers, addr string, up bool) {
		a.report(netip.MustParseAddrPort(addr), up)
	}
	for name, c := range map[string]struct {
		servers []string
		steps   func(a *apiServers)
		want    []string
	}{
		// after 0, 0.1 s, 0.3 s, the node's delay, 1 s more, 10 s more, 25 s, 36 s
		"another answers": {[]string{gone, other}, func(a *apiServers) {
			say(a, other, true)
			say(a, gone, false)
		}, []string{"stuck", "-", "stuck", "rest", "-", "rest", "rest", "rest"}},
		"no other answers": {[]string{gone, other}, func(a *apiServers) {
			say(a, gone, false)
		}, []string{"-", "-", "-", "-", "-", "-", "-", "-"}},
		"only one of another family answers": {[]string{gone, v6}, func(a *apiServers) {
			say(a, v6, true)
			say(a, gone, false)
		}, []string{"-", "-", "-", "-", "-", "-", "-", "-"}},
		"fewer than half answer": {[]string{gone, other, third}, func(a *apiServers) {
			say(a, other, true)
			say(a, gone, false)
		}, []string{"-", "-", "-", "-", "-", "-", "rest", "rest"}},
		"it answers again": {[]string{gone, other}, func(a *apiServers) {
			say(a, other, true)
			say(a, gone, false)
			say(a, gone, true)
		}, []string{"-", "-", "-", "-", "-", "-", "-", "-"}},
		"the maps still lead to it": {[]string{gone, other}, func(a *apiServers) {
			say(a, other, true)
			say(a, gone, false)
			a.written(service.APIServer{Backends: addrPorts(gone, other)})
		}, []string{"-", "-", "-", "-", "-", "-", "rest", "rest"}},
		"the last process found it dead": {[]string{gone, other}, func(a *apiServers) {
			say(a, other, true)
			s := a.servers[netip.MustParseAddrPort(gone)]
			s.up, s.since = false, time.Now()
		}, []string{"-", "-", "-", "-", "-", "-", "rest", "rest"}},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPIServers("node-1", APIServers{Frontends: addrPorts(apiFrontend),
				Remembered: addrPorts(c.servers...)})
			c.steps(a)
			began, delay := time.Now(), a.closing.delay
			got := dueLine(a, began, 0, 100*time.Millisecond, 300*time.Millisecond, delay,
				delay+time.Second, delay+closeEvery, deadAfter+time.Second,
				deadAfter+time.Second+closeEvery)
			if !slices.Equal(got, c.want) {
				t.Errorf("due %v, want %v", got, c.want)
			}
		})
	}
}

func TestNodesCloseAtTheirOwnTimes(t *testing.T) {
	seen := map[time.Duration]bool{}
	for i := range 100 {
		delay := newClosings(fmt.Sprintf("node-%d", i)).delay
		if delay < restAfter || delay >= restAfter+restSpread {
			t.Errorf("node-%d closes after %v", i, delay)
		}
		seen[delay/(restSpread/10)] = true
	}
	if len(seen) < 8 {
		t.Errorf("a hundred nodes close in %d of ten parts of the time", len(seen))
	}
}

// A slow search is a rare one, and a failed one is not counted.
func TestSearchesTakeAPartOfTheTime(t *testing.T) {
	const gone = "198.18.0.1:6443"
	a := newAPIServers("node-1", APIServers{Frontends: addrPorts(apiFrontend),
		Remembered: addrPorts(gone, "198.18.0.2:6443")})
	a.report(netip.MustParseAddrPort("198.18.0.2:6443"), true)
	a.report(netip.MustParseAddrPort(gone), false)
	began := time.Now()
	due := a.due(began)
	if len(due) != 1 {
		t.Fatalf("due %v", due)
	}
	a.closed(due[0], 3, nil, 50*time.Millisecond)
	if got := a.due(began.Add(700 * time.Millisecond)); got != nil {
		t.Errorf("0.7 s after a search of 50 ms another is due: %v", got)
	}
	if got := a.due(began.Add(800 * time.Millisecond)); len(got) != 1 {
		t.Errorf("0.8 s after a search of 50 ms none is due")
	}
	rest := a.due(began.Add(6 * time.Second))[0]
	a.closed(rest, 2, errors.New("one namespace"), 0)
	if s := a.servers[rest.Server]; s.times != 0 {
		t.Error("a search that failed counts")
	}
	if _, got := a.status(); got != (Closed{Stuck: 3, Rest: 2}) {
		t.Errorf("counted %+v", got)
	}
}

// holder is a client of HTTP/2 that holds its connection. Its first goes to a server of the test's
// choice, further ones to the first backend in the table.
type holder struct {
	http.Client
	mu    sync.Mutex
	conns map[netip.AddrPort][]net.Conn
}

// newHolder returns a client. Servers listen at their addresses in at.
func newHolder(first netip.AddrPort, table *fakeTable,
	at map[netip.AddrPort]netip.AddrPort) *holder {
	h := &holder{conns: map[netip.AddrPort][]net.Conn{}}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		h.mu.Lock()
		defer h.mu.Unlock()
		to := first
		if len(h.conns) > 0 {
			backends := table.backends(apiFrontend)
			if _, err := fmt.Sscan(backends, &backends); err != nil {
				return nil, err
			}
			to = netip.MustParseAddrPort(backends)
		}
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", at[to].String())
		if err == nil {
			h.conns[to] = append(h.conns[to], c)
		}
		return c, err
	}
	h.Transport = &http.Transport{ForceAttemptHTTP2: true, DialContext: dial,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	return h
}

func (h *holder) get(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://kubernetes/version", nil)
	if err != nil {
		return err
	}
	r, err := h.Do(q)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	_, err = io.Copy(io.Discard, r.Body)
	return err
}

// close closes the connections to a server, as SOCK_DESTROY does.
func (h *holder) close(to netip.AddrPort) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.conns[to] {
		c.Close()
	}
	n := len(h.conns[to])
	h.conns[to] = nil
	return n
}

// TestHeldConnectionsMove has a server fall silent under a client, with the real prober. The client
// that waits is freed at once, and the one whose connection looks idle after the node's delay. Both
// took 26 s while only deadAfter closed connections.
func TestHeldConnectionsMove(t *testing.T) {
	for name, waiting := range map[string]bool{"it waits for an answer": true, "idle": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, second := netip.MustParseAddrPort("198.18.0.1:6443"),
				netip.MustParseAddrPort("198.18.0.2:6443")
			firstAt, freeze, end := testServer(t, true)
			secondAt, _, _ := testServer(t, true)
			at := map[netip.AddrPort]netip.AddrPort{first: firstAt, second: secondAt}
			table := newFakeTable()
			h := newHolder(first, table, at)
			defer h.CloseIdleConnections()

			var mu sync.Mutex
			var calls []Closing
			begin(t, table, func(o *Options) {
				o.CloseSockets = func(c Closing) (int, error) {
					mu.Lock()
					defer mu.Unlock()
					calls = append(calls, c)
					if c.Stuck && !waiting {
						return 0, nil
					}
					return h.close(c.Server), nil
				}
			}, func(p *Proxy) {
				p.api.closing.delay = restAfter
				p.probe = func(ctx context.Context, one probe) {
					one.addr = at[one.addr]
					probeServer(ctx, one)
				}
			})
			table.waitBackends(t, apiFrontend, fmt.Sprintf("%s %s", first, second))
			wait(t, "first request", func() error { return h.get(t.Context()) })

			began := time.Now()
			freeze()
			defer end()
			table.waitBackends(t, apiFrontend, second.String())
			wait(t, "a request of the held client", func() error { return h.get(t.Context()) })
			t.Logf("served again after %v", time.Since(began).Round(time.Millisecond))

			mu.Lock()
			defer mu.Unlock()
			if !calls[0].Stuck || calls[0].Server != first {
				t.Errorf("the first closing was %+v", calls[0])
			}
			if last := calls[len(calls)-1]; last.Stuck != waiting {
				t.Errorf("it was freed by %+v", last)
			}
		})
	}
}
