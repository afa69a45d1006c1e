package apiserver

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service/apiserver/prober"
	"github.com/kubeveil/kubeveil/pkg/service/apiserver/prober/probertest"
	"github.com/kubeveil/kubeveil/pkg/service/servicetest"
)

// twoServers are two servers of HTTP/2 that Servers with the real prober balance. The first one
// can be frozen.
type twoServers struct {
	first, second netip.AddrPort
	// at has the addresses at which they listen: entry 0 takes no loopback ones.
	at map[netip.AddrPort]netip.AddrPort
	*Servers
	// freeze stops the reads of the first server. thaw ends that server.
	freeze, thaw func()
	// ready is the status of /readyz of the first server, 0 for no answer. asked counts requests.
	ready, asked atomic.Int32
	// verify replaces the verification of certificates for some servers.
	verify map[netip.AddrPort]func(tls.ConnectionState) error
}

func newTwoServers(t *testing.T) *twoServers {
	w := &twoServers{first: netip.MustParseAddrPort("198.18.0.1:6443"),
		second: netip.MustParseAddrPort("198.18.0.2:6443")}
	w.ready.Store(http.StatusOK)
	firstAt, freeze, end := probertest.Serve(t, true, func(rw http.ResponseWriter,
		r *http.Request) {
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
	secondAt, _, _ := probertest.Serve(t, true, func(http.ResponseWriter, *http.Request) {})
	w.at = map[netip.AddrPort]netip.AddrPort{w.first: firstAt, w.second: secondAt}
	w.freeze, w.thaw = freeze, end
	return w
}

// begin starts Servers that know both.
func (w *twoServers) begin(t *testing.T, change func(*ServersConfig)) {
	t.Helper()
	o := ServersConfig{Node: "node-1", Known: Known{Frontends: nettest.AddrPorts(apiFrontend),
		Remembered: []netip.AddrPort{w.first, w.second}}}
	if change != nil {
		change(&o)
	}
	w.Servers = New(o)
	w.probe = func(ctx context.Context, one prober.Target) {
		if verify := w.verify[one.Addr]; verify != nil {
			one.Verify = verify
		}
		one.Addr = w.at[one.Addr]
		prober.Run(ctx, one)
	}
	w.closing.part = 0

	var mu sync.Mutex // serializes writes, as one goroutine writes a table
	write := func() {
		mu.Lock()
		defer mu.Unlock()
		w.Written(w.Entry())
	}
	write()
	ctx, cancel := context.WithCancel(t.Context())
	wait := w.Start(ctx, write)
	t.Cleanup(func() { cancel(); wait() })
}

// waitBoth waits until both servers have answered a probe and are backends.
func (w *twoServers) waitBoth(t *testing.T) {
	t.Helper()
	servicetest.Wait(t, "two servers that answer", func() error {
		for _, s := range w.Status().Servers {
			if !s.Up || s.Since.IsZero() {
				return fmt.Errorf("server %+v is not up", s)
			}
		}
		return nil
	})
	w.waitBackends(t, w.first, w.second)
}

// waitBackends waits until these are the backends of entry 0.
func (w *twoServers) waitBackends(t *testing.T, want ...netip.AddrPort) {
	t.Helper()
	servicetest.Wait(t, "backends of entry 0", func() error {
		if got := w.Entry().Backends; !slices.Equal(got, want) {
			return fmt.Errorf("backends %v, want %v", got, want)
		}
		return nil
	})
}

// holder is a client of HTTP/2 that holds its connection. Its first connection goes to the first
// server, later connections go to the first backend of entry 0.
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
			to = w.Entry().Backends[0]
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

// TestHeldConnectionsMove makes a server fall silent that clients are connected to, with the real
// prober. The connection of a client that waits is closed at once. A connection that looks idle is
// closed after the node's delay, well before deadAfter.
func TestHeldConnectionsMove(t *testing.T) {
	for name, waiting := range map[string]bool{"it waits for an answer": true, "idle": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTwoServers(t)
			h := newHolder(w)
			defer h.CloseIdleConnections()
			var mu sync.Mutex
			var calls, freed []Closing
			w.begin(t, func(o *ServersConfig) {
				o.Close = func(c Closing) (int, time.Duration, error) {
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
			})
			w.waitBoth(t)
			servicetest.Wait(t, "first request", func() error { return h.get(t.Context()) })

			began := time.Now()
			w.freeze()
			defer w.thaw()
			w.waitBackends(t, w.second)
			servicetest.Wait(t, "a request of the held client",
				func() error { return h.get(t.Context()) })
			t.Logf("served again after %v", time.Since(began).Round(time.Millisecond))

			mu.Lock()
			defer mu.Unlock()
			if !calls[0].Stuck {
				t.Errorf("the first closing was %+v", calls[0])
			}
			if len(freed) != 1 || freed[0].Stuck != waiting {
				t.Errorf("the idle client was freed by %+v", freed)
			}
		})
	}
}
