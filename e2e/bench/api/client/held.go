package client

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubeveil/kubeveil/e2e/bench/api/server"
)

// Kinds of clients that hold connections.
const (
	KindCurl  = "curl"
	KindGo    = "client_go"
	KindHTTP2 = "http2"
)

// Kinds lists the kinds of clients that Hold runs. None of them has a time limit for requests.
var Kinds = []struct {
	Name, Title string
	make        func(to netip.AddrPort, dir string, count func()) (asker, error)
}{
	{KindCurl, "HTTP/1.1 as curl has it", func(to netip.AddrPort, dir string,
		count func()) (asker, error) {
		return newAsker(to, dir, "http/1.1", count)
	}},
	{KindGo, "client-go with its defaults", newGoAsker},
	{KindHTTP2, "HTTP/2 without pings", func(to netip.AddrPort, dir string,
		count func()) (asker, error) {
		return newAsker(to, dir, "h2", count)
	}},
}

// asker makes one request over a connection that it keeps open.
type asker func(ctx context.Context) error

const (
	// HeldEach is the number of clients of each kind. With six, it is rare that all of them have
	// connections to the same one of two servers.
	HeldEach = 6
	// HeldPeriod is the time between two requests of a client of Hold.
	HeldPeriod = 150 * time.Millisecond
	heldPath   = "/version"

	// fleetPeriod is the time between two requests of a client of Fleet.
	fleetPeriod = 200 * time.Millisecond

	// LineHeld and LineServed are the lines that the process prints once all clients are connected,
	// and once all were served after the mark.
	LineHeld, LineServed = "held", "served"
)

// dialer returns a dial function. Its connections call count once if they end before the client
// closes them. A connection that the client itself closes does not count: net/http closes some when
// its writer gets no CPU for 50 ms.
func dialer(d net.Dialer, count func()) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := d.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &heldConn{Conn: c, ended: sync.OnceFunc(count)}, nil
	}
}

// heldConn is a connection that calls ended when a read or write shows that the connection has
// ended.
type heldConn struct {
	net.Conn
	ended func()
}

func (c *heldConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.see(err)
	return n, err
}

// Write may be the first call that returns the error of a reset. Read then does not return it.
func (c *heldConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.see(err)
	return n, err
}

func (c *heldConn) see(err error) {
	if err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, os.ErrDeadlineExceeded) {
		c.ended()
	}
}

// newTransport returns a transport of net/http that uses one protocol, "h2" or "http/1.1".
func newTransport(dir, protocol string, count func()) (*http.Transport, error) {
	config, err := server.Credentials(dir, "client")
	if err != nil {
		return nil, err
	}
	t := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: protocol == "h2",
		DialContext: dialer(net.Dialer{}, count)}
	if protocol != "h2" {
		t.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	}
	return t, nil
}

// ask makes one request and returns an error unless the answer is 200 OK.
func ask(ctx context.Context, t *http.Transport, to netip.AddrPort) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+to.String()+heldPath, nil)
	if err != nil {
		return err
	}
	resp, err := t.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%w: %s", errAnswer, resp.Status)
	}
	return nil
}

// newAsker returns the asker of a client of net/http that uses one protocol.
func newAsker(to netip.AddrPort, dir, protocol string, count func()) (asker, error) {
	t, err := newTransport(dir, protocol, count)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error { return ask(ctx, t, to) }, nil
}

// newGoClient returns a client of client-go with its own connection. It sets a dialer, because
// clients of one process otherwise share a connection. The dialer's values are the defaults of
// client-go.
func newGoClient(to netip.AddrPort, dir string, count func()) (kubernetes.Interface, error) {
	file := func(name string) string { return filepath.Join(dir, name) }
	d := net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}
	return kubernetes.NewForConfig(&rest.Config{Host: "https://" + to.String(), QPS: -1,
		Dial: dialer(d, count),
		TLSClientConfig: rest.TLSClientConfig{CAFile: file("ca.crt"), CertFile: file("client.crt"),
			KeyFile: file("client.key")}})
}

// newGoAsker returns the asker of a client of client-go.
func newGoAsker(to netip.AddrPort, dir string, count func()) (asker, error) {
	c, err := newGoClient(to, dir, count)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		_, err := c.Discovery().RESTClient().Get().AbsPath(heldPath).DoRaw(ctx)
		return err
	}, nil
}

// Tally is the output of a process of clients at its end. It covers the time since the mark.
type Tally struct {
	// Served holds the times at which clients were first served, keyed by kind, in milliseconds
	// since 1970.
	Served map[string][]int64 `json:"served"`
	// Missed counts events that watches did not see.
	Missed int `json:"missed"`
	// Closed counts connections that ended before their clients closed them, keyed by kind.
	Closed map[string]int `json:"closed"`
	// Done and Failed count requests.
	Done   int `json:"done"`
	Failed int `json:"failed"`
}

// Add adds all counts of other to t. It does not add Served.
func (t *Tally) Add(other Tally) {
	t.Missed += other.Missed
	for kind, n := range other.Closed {
		if t.Closed == nil {
			t.Closed = map[string]int{}
		}
		t.Closed[kind] += n
	}
	t.Done += other.Done
	t.Failed += other.Failed
}

// held holds the clients of a process.
type held struct {
	out io.Writer
	// clients is the number of clients. period is the time between two requests of a client.
	clients int
	period  time.Duration
	wg      sync.WaitGroup
	marks   chan os.Signal

	mu sync.Mutex
	// marked is the time of the mark (SIGUSR1). Only requests that begin later count.
	marked time.Time
	// opened is the number of clients that had an answer. served is the number of clients that had
	// one since the mark.
	opened, served int
	tally          Tally
}

// newHeld returns a held whose clients the caller starts. It accepts the mark from now on.
func newHeld(clients int, period time.Duration, out io.Writer) *held {
	h := &held{out: out, clients: clients, period: period, marks: make(chan os.Signal, 1)}
	signal.Notify(h.marks, syscall.SIGUSR1)
	return h
}

// Hold runs clients of all kinds until ctx is done, and then prints its tally. Each client sends a
// request every HeldPeriod. Further clients watch the object that Write writes.
func Hold(ctx context.Context, dir, addr string, out io.Writer) error {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return err
	}
	h := newHeld(HeldEach*len(Kinds)+Watchers, HeldPeriod, out)
	for _, k := range Kinds {
		for range HeldEach {
			ask, err := k.make(to, dir, h.count(k.Name))
			if err != nil {
				return err
			}
			h.wg.Go(func() { h.keep(ctx, k.Name, ask) })
		}
	}
	for range Watchers {
		c, err := newGoClient(to, dir, h.count(KindWatch))
		if err != nil {
			return err
		}
		h.wg.Go(func() { h.watch(ctx, c) })
	}
	return h.run(ctx)
}

// Fleet runs n clients of client-go with its defaults, each with five requests per second, until
// ctx is done. It then prints its tally.
func Fleet(ctx context.Context, dir, addr string, n int, out io.Writer) error {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return err
	}
	h := newHeld(n, fleetPeriod, out)
	for range n {
		ask, err := newGoAsker(to, dir, h.count(KindGo))
		if err != nil {
			return err
		}
		h.wg.Go(func() { h.keep(ctx, KindGo, ask) })
	}
	return h.run(ctx)
}

// run waits for the mark and for the end, and prints the tally.
func (h *held) run(ctx context.Context) error {
	defer signal.Stop(h.marks)
	select {
	case <-h.marks:
		h.mu.Lock()
		h.marked = time.Now()
		h.mu.Unlock()
	case <-ctx.Done():
	}
	h.wg.Wait()

	// Connections outlive their clients and may still call count, so the tally needs the lock.
	h.mu.Lock()
	defer h.mu.Unlock()
	return json.NewEncoder(h.out).Encode(h.tally)
}

// count returns the function that connections of clients of a kind call when they end.
func (h *held) count(kind string) func() {
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if !h.marked.IsZero() {
			h.tally.Add(Tally{Closed: map[string]int{kind: 1}})
		}
	}
}

// keep sends a request every period until ctx is done. A failed request is not repeated before the
// next period.
func (h *held) keep(ctx context.Context, kind string, ask asker) {
	select {
	case <-ctx.Done():
		return
	case <-time.After(rand.N(h.period)): // so that clients do not send at the same time
	}
	tick := time.NewTicker(h.period)
	defer tick.Stop()

	open, served := false, false
	for {
		began := time.Now()
		err := ask(ctx)
		if ctx.Err() != nil {
			return
		}

		h.mu.Lock()
		if err == nil && !open {
			open = true
			h.openLocked()
		}
		if !h.marked.IsZero() && began.After(h.marked) {
			if err != nil {
				h.tally.Failed++
			} else {
				h.tally.Done++
			}
			if err == nil && !served {
				served = true
				h.serveLocked(kind)
			}
		}
		h.mu.Unlock()

		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// openLocked counts a client that had its first answer. It prints LineHeld after the last one.
func (h *held) openLocked() {
	if h.opened++; h.opened == h.clients {
		fmt.Fprintln(h.out, LineHeld)
	}
}

// serveLocked records that a client was served since the mark. It prints LineServed after the last
// one.
func (h *held) serveLocked(kind string) {
	if h.tally.Served == nil {
		h.tally.Served = map[string][]int64{}
	}
	h.tally.Served[kind] = append(h.tally.Served[kind], time.Now().UnixMilli())
	if h.served++; h.served == h.clients {
		fmt.Fprintln(h.out, LineServed)
	}
}
