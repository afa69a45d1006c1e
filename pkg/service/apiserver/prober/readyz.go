package prober

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/internal/poll"
)

// mostBody bounds the body of an answer to /readyz, which is read and discarded.
const mostBody = 64 << 10

// startReadyz requests /readyz again and again until end is called, without credentials, over a
// connection of HTTP/1.1. It does not use the connection of the pings: kube-apiserver ends an
// HTTP/2 connection on which a client without credentials sends a request
// (UnauthenticatedHTTP2DOSMitigation).
func (p Target) startReadyz(ctx context.Context) (outcomes <-chan Readiness, end func()) {
	ctx, cancel := context.WithCancel(ctx)
	own := lastSocket{all: p.Own}
	transport := &http.Transport{
		// The dial uses ctx, because it would outlive the context of a request.
		DialTLSContext: func(context.Context, string, string) (net.Conn, error) {
			return p.connect(ctx, connectLimit, own.set, http1)
		},
		MaxConnsPerHost:    1,
		DisableCompression: true,
	}

	out := make(chan Readiness)
	var wg sync.WaitGroup
	wg.Go(func() {
		pause := phase(p.Pace.ready())
		for {
			began := time.Now()
			outcome := p.askReadyz(ctx, transport)
			select {
			case <-ctx.Done():
				return
			case out <- outcome:
			}
			if poll.Pause(ctx, pause-time.Since(began)) != nil {
				return
			}
			pause = p.Pace.ready()
		}
	})
	return out, func() {
		cancel()
		wg.Wait()
		transport.CloseIdleConnections()
		own.end()
	}
}

// lastSocket is the newest socket of a transport that has one socket at a time.
type lastSocket struct {
	all    *Cookies
	mu     sync.Mutex
	cookie uint64
	ended  bool // a dial may outlive its request
}

func (l *lastSocket) set(cookie uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all.remove(l.cookie)
	if l.cookie = cookie; !l.ended {
		l.all.add(cookie)
	}
}

func (l *lastSocket) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	l.all.remove(l.cookie)
}

// askReadyz sends one request and returns its outcome. An answer that demands credentials does not
// show whether the server is ready.
func (p Target) askReadyz(ctx context.Context, transport *http.Transport) Readiness {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet,
		"https://"+p.Addr.String()+"/readyz", nil)
	if err != nil {
		return SaysNothing
	}
	q.Header.Set("User-Agent", "veild")
	r, err := transport.RoundTrip(q)
	if err != nil {
		return Hangs
	}
	defer r.Body.Close()

	if _, err := io.Copy(io.Discard, io.LimitReader(r.Body, mostBody)); err != nil {
		return Hangs
	}
	switch {
	case r.StatusCode == http.StatusOK:
		return Ready
	case r.StatusCode >= http.StatusInternalServerError:
		return NotReady
	}
	return SaysNothing
}
