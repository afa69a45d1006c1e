package keeper

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// twoServers are two servers of HTTP/2 that a Keeper with the real prober balances. The first one
// can be frozen.
type twoServers struct {
	first, second netip.AddrPort
	// at has the addresses at which they listen: the table takes no loopback ones.
	at    map[netip.AddrPort]netip.AddrPort
	table *fakeTable
	// freeze stops what reads of the first server; thaw ends that server.
	freeze, thaw func()
	// ready is the status of /readyz of the first server, 0 for no answer. asked counts requests.
	ready, asked atomic.Int32
	// verify has the verification of certificates by server, if not that of the Options.
	verify map[netip.AddrPort]func(tls.ConnectionState) error
}

func newTwoServers(t *testing.T) *twoServers {
	w := &twoServers{first: netip.MustParseAddrPort("198.18.0.1:6443"),
		second: netip.MustParseAddrPort("198.18.0.2:6443"), table: newFakeTable()}
	w.ready.Store(http.StatusOK)
	firstAt, freeze, end := serve(t, true, func(rw http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 2 && r.URL.Path == "/readyz" {
			// As kube-apiserver does to clients without credentials.
			rw.Header().Set("Connection", "close")
		}
		w.asked.Add(1)
		if status := w.ready.Load(); status != 0 {
			rw.WriteHeader(int(status))
			return
		}
		<-r.Context().Done()
	})
	secondAt, _, _ := serve(t, true, func(http.ResponseWriter, *http.Request) {})
	w.at = map[netip.AddrPort]netip.AddrPort{w.first: firstAt, w.second: secondAt}
	w.freeze, w.thaw = freeze, end
	return w
}

// begin begins a Keeper that knows both.
func (w *twoServers) begin(t *testing.T, change func(*Options), tweaks ...func(*Keeper)) *Keeper {
	t.Helper()
	real := func(p *Keeper) {
		p.probe = func(ctx context.Context, one probe) {
			if verify := w.verify[one.addr]; verify != nil {
				one.verify = verify
			}
			one.addr = w.at[one.addr]
			probeServer(ctx, one)
		}
	}
	p, _, _ := begin(t, w.table, change, append(tweaks, real)...)
	return p
}

// waitBoth waits until both servers have answered a probe and are backends.
func (w *twoServers) waitBoth(t *testing.T, p *Keeper) {
	t.Helper()
	wait(t, "two servers that answer", func() error {
		for _, s := range p.Status().APIServers {
			if !s.Up || s.Since.IsZero() {
				return fmt.Errorf("%+v", s)
			}
		}
		return nil
	})
	w.table.waitBackends(t, apiFrontend, fmt.Sprintf("%s %s", w.first, w.second))
}

// holder is a client of HTTP/2 that holds its connection. Its first goes to the first server,
// further ones to the first backend in the table.
type holder struct {
	http.Client
	mu    sync.Mutex
	conns map[netip.AddrPort][]net.Conn
}

func newHolder(w *twoServers) *holder {
	h := &holder{conns: map[netip.AddrPort][]net.Conn{}}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		h.mu.Lock()
		defer h.mu.Unlock()
		to := w.first
		if len(h.conns) > 0 {
			var backend string
			if _, err := fmt.Sscan(w.table.backends(apiFrontend), &backend); err != nil {
				return nil, err
			}
			to = netip.MustParseAddrPort(backend)
		}
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", w.at[to].String())
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
			w := newTwoServers(t)
			h := newHolder(w)
			defer h.CloseIdleConnections()
			var mu sync.Mutex
			var calls, freed []Closing
			p := w.begin(t, func(o *Options) {
				o.CloseSockets = func(c Closing) (int, time.Duration, error) {
					mu.Lock()
					defer mu.Unlock()
					if c.Server != w.first { // the other one may miss a ping on a busy machine
						return 0, 0, nil
					}
					calls = append(calls, c)
					if c.Stuck && !waiting {
						return 0, 0, nil
					}
					n := h.close(c.Server)
					if n > 0 {
						freed = append(freed, c)
					}
					return n, 0, nil
				}
			}, func(p *Keeper) { p.api.closing.part = 0 })
			w.waitBoth(t, p)
			wait(t, "first request", func() error { return h.get(t.Context()) })

			began := time.Now()
			w.freeze()
			defer w.thaw()
			w.table.waitBackends(t, apiFrontend, w.second.String())
			wait(t, "a request of the held client", func() error { return h.get(t.Context()) })
			t.Logf("served again after %v", time.Since(began).Round(time.Millisecond))

			mu.Lock()
			defer mu.Unlock()
			if !calls[0].Stuck {
				t.Errorf("the first closing was %+v", calls[0])
			}
			if len(freed) != 1 || freed[0].Stuck != waiting {
				t.Errorf("it was freed by %+v", freed)
			}
		})
	}
}
