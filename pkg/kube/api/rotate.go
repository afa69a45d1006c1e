package api

import (
	"context"
	"net"
	"net/http"
	"time"

	"k8s.io/client-go/rest"
)

const (
	// moveEvery is the time after which new requests use another transport, and so another
	// connection. client-go ends each watch after 5 to 10 minutes, so a watch moves when it is
	// restarted.
	moveEvery = 5 * time.Minute
	// transports is the number of transports, which are used in rotation. The connection of a
	// transport is idle at most 10 minutes after its last request began, and is closed 90 s later.
	// So it is closed before its next turn, which comes 15 minutes after its last one ended.
	transports = 4
)

// rotating is a transport whose connections move between API servers. An HTTP/2 connection lasts as
// long as there is a watch on it. So after the restart of a server, without rotation all watches of
// the cluster would stay at the other servers.
type rotating struct {
	turns [transports]http.RoundTripper
	began time.Time
	now   func() time.Time
}

// newRotating returns an HTTP client for cfg. Each of its transports has its own connections.
func newRotating(cfg *rest.Config, now func() time.Time) (*http.Client, error) {
	r := &rotating{began: now(), now: now}
	for i := range r.turns {
		cfg := rest.CopyConfig(cfg)
		dial := cfg.Dial
		if dial == nil {
			dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
		}
		// client-go shares a transport between configurations, but not if they dial themselves.
		cfg.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			return dial(ctx, network, addr)
		}
		rt, err := rest.TransportFor(cfg)
		if err != nil {
			return nil, err
		}
		r.turns[i] = rt
	}
	// An API server does not redirect. A redirect would take the token to another server.
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &http.Client{Transport: r, Timeout: cfg.Timeout, CheckRedirect: stay}, nil
}

// RoundTrip sends a request over the transport whose turn it is.
func (r *rotating) RoundTrip(q *http.Request) (*http.Response, error) {
	turn := r.now().Sub(r.began) / moveEvery % transports
	return r.turns[turn].RoundTrip(q)
}
