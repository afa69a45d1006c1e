package api

import (
	"context"
	"net"
	"net/http"
	"time"

	"k8s.io/client-go/rest"
)

const (
	// moveEvery is the time after which new requests use another connection. client-go ends each
	// watch after 5 to 10 minutes, so a watch moves at its next beginning.
	moveEvery = 5 * time.Minute
	// transports is the number of transports in turn. The connection of one is idle at the latest
	// 10 minutes after its last request began, and closed 90 s later: before its next turn, which
	// comes 15 minutes after its last.
	transports = 4
)

// rotating is a client of the API server whose connections move between servers. A connection of
// HTTP/2 lasts as long as there is a watch on it: once a server has restarted, all watches of the
// cluster would stay at the others.
type rotating struct {
	turns [transports]http.RoundTripper
	began time.Time
	now   func() time.Time
}

// newRotating returns an HTTP client for cfg whose transports have a connection each.
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
	return &http.Client{Transport: r, Timeout: cfg.Timeout}, nil
}

// RoundTrip sends a request over the transport whose turn it is.
func (r *rotating) RoundTrip(q *http.Request) (*http.Response, error) {
	turn := r.now().Sub(r.began) / moveEvery % transports
	return r.turns[turn].RoundTrip(q)
}
