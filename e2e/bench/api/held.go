package api

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
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
)

// Kinds of clients that hold connections.
const (
	kindCurl  = "curl"
	kindGo    = "client_go"
	kindHTTP2 = "http2"
)

// kinds are the clients that are held: none of them has a time limit of its own.
var kinds = []struct {
	name, title string
	make        func(to netip.AddrPort, dir string) (asker, error)
}{
	{kindCurl, "HTTP/1.1 as curl has it", func(to netip.AddrPort, dir string) (asker, error) {
		return newAsker(to, dir, "http/1.1")
	}},
	{kindGo, "client-go with its defaults", newGoAsker},
	{kindHTTP2, "HTTP/2 without pings", func(to netip.AddrPort, dir string) (asker, error) {
		return newAsker(to, dir, "h2")
	}},
}

// asker makes one request, over a connection that it keeps.
type asker func(ctx context.Context) error

const (
	heldEach   = 6 // clients of each kind, so that all on one of two servers is rare
	heldPeriod = 150 * time.Millisecond
	heldPath   = "/version"

	// Lines that the process prints.
	lineHeld, lineServed = "held", "served"
)

// newAsker returns a client of net/http that speaks one protocol.
func newAsker(to netip.AddrPort, dir, protocol string) (asker, error) {
	config, err := credentials(dir, "client")
	if err != nil {
		return nil, err
	}
	t := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: protocol == "h2"}
	if protocol != "h2" {
		t.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	}

	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+to.String()+heldPath,
			nil)
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
	}, nil
}

// newGoAsker returns a client of client-go with a connection of its own: clients of one process
// share a connection unless each has a dialer. This one is client-go's default.
func newGoAsker(to netip.AddrPort, dir string) (asker, error) {
	file := func(name string) string { return filepath.Join(dir, name) }
	c, err := kubernetes.NewForConfig(&rest.Config{Host: "https://" + to.String(), QPS: -1,
		Dial: (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSClientConfig: rest.TLSClientConfig{CAFile: file("ca.crt"), CertFile: file("client.crt"),
			KeyFile: file("client.key")}})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		_, err := c.Discovery().RESTClient().Get().AbsPath(heldPath).DoRaw(ctx)
		return err
	}, nil
}

// held are the clients of a process.
type held struct {
	mu sync.Mutex
	// marked is when SIGUSR1 came: from then on requests that begin count.
	marked time.Time
	opened int
	// served is when a request was first answered that began after the mark, by kind.
	served map[string][]time.Time
}

// hold keeps clients of all kinds that ask the server again and again, until ctx is done, and
// prints then for each kind when each client was served after the mark, milliseconds since 1970.
func hold(ctx context.Context, dir, addr string, out io.Writer) error {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return err
	}
	marks := make(chan os.Signal, 1)
	signal.Notify(marks, syscall.SIGUSR1)
	defer signal.Stop(marks)

	h := &held{served: map[string][]time.Time{}}
	var wg sync.WaitGroup
	for _, k := range kinds {
		for range heldEach {
			ask, err := k.make(to, dir)
			if err != nil {
				return err
			}
			wg.Go(func() { h.keep(ctx, k.name, ask, out) })
		}
	}

	select {
	case <-marks:
		h.mu.Lock()
		h.marked = time.Now()
		h.mu.Unlock()
	case <-ctx.Done():
	}
	wg.Wait()
	return h.print(out)
}

// keep asks at regular moments. A request that fails is followed by another one at the next.
func (h *held) keep(ctx context.Context, kind string, ask asker, out io.Writer) {
	tick := time.NewTicker(heldPeriod)
	defer tick.Stop()
	open, served := false, false
	for {
		began := time.Now()
		err := ask(ctx)

		h.mu.Lock()
		if err == nil && !open {
			open = true
			if h.opened++; h.opened == heldEach*len(kinds) {
				fmt.Fprintln(out, lineHeld)
			}
		}
		if err == nil && !served && !h.marked.IsZero() && began.After(h.marked) {
			served = true
			h.served[kind] = append(h.served[kind], time.Now())
			if h.all() {
				fmt.Fprintln(out, lineServed)
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

// all reports whether all clients were served.
func (h *held) all() bool {
	for _, k := range kinds {
		if len(h.served[k.name]) < heldEach {
			return false
		}
	}
	return true
}

func (h *held) print(out io.Writer) error {
	millis := map[string][]int64{}
	for kind, all := range h.served {
		for _, at := range all {
			millis[kind] = append(millis[kind], at.UnixMilli())
		}
	}
	return json.NewEncoder(out).Encode(millis)
}
