package apiserver

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/sys/unix"
)

const (
	// pingLimit is the time limit of a ping. A server that vanishes is detected within the sum of
	// this and the pause between pings: 0.75 s in a cluster of up to 1,000 nodes.
	pingLimit = 500 * time.Millisecond
	// grace is the extra time of a ping whose limit this process missed, for lack of CPU.
	grace = 100 * time.Millisecond
	// readyLimit is the time limit of a request for /readyz.
	readyLimit = 2 * time.Second
	// connectLimit bounds a connect with its TLS handshake. silentLimit bounds the TCP part while
	// the server is silent: the kernel's own next SYN would come a second after the first.
	connectLimit, silentLimit = 2 * time.Second, 500 * time.Millisecond
)

// http1 is HTTP/1.1 in ALPN (RFC 7301).
const http1 = "http/1.1"

// probe is the task of probing one server.
type probe struct {
	addr netip.AddrPort
	// report receives what was observed.
	report func(observation)
	// verify verifies the certificate of a server; nil means that it cannot be verified.
	verify func(tls.ConnectionState) error
	// names are the addresses that are looked for in its certificate, mark is the mark of its
	// sockets.
	names []netip.AddrPort
	mark  uint32
	// own learns the sockets of the probe.
	own *ownSockets
	// ask makes the probe ping at once when it receives a value.
	ask <-chan struct{}
	// pace has the pauses.
	pace *pace
}

// prober probes a server and reports again and again until ctx ends.
type prober func(ctx context.Context, p probe)

// probeServer holds one TLS connection to the server and sends HTTP/2 pings (RFC 9113 section 6.7).
// The end of the process closes the connection; the end of the machine leaves pings unanswered. One
// handshake each second would detect either too late, at a hundred times the cost. Servers close
// idle connections, so probeServer connects again at once. A server without HTTP/2 is probed by
// handshakes alone.
func probeServer(ctx context.Context, p probe) {
	silent, report := false, p.report
	p.report = func(o observation) {
		silent = !o.up
		report(o)
	}

	for ctx.Err() == nil {
		began, limit := time.Now(), connectLimit
		if silent {
			limit = silentLimit
		}
		held := p.once(ctx, limit)
		if held && time.Since(began) > leastConnect {
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(p.pace.connect() - time.Since(began)):
		}
	}
}

// once connects within a limit, and reports until the connection ends. It returns whether the
// server spoke HTTP/2.
func (p probe) once(ctx context.Context, limit time.Duration) (held bool) {
	var cookie uint64
	defer func() { p.own.remove(cookie) }()
	conn, err := p.connect(ctx, limit, func(c uint64) {
		cookie = c
		p.own.add(c)
	}, http2.NextProtoTLS, http1)

	switch {
	case err == nil:
		defer conn.Close()
		return p.hold(ctx, conn)
	case ctx.Err() == nil:
		p.report(observation{})
	}
	return false
}

// connect returns a connection after its TLS handshake, for one of some protocols. limit bounds the
// TCP part. made receives the cookie of the socket before it connects. connect accepts each
// certificate, which hold judges: the probe sends no secrets, and a server with a wrong certificate
// is a problem to be shown.
func (p probe) connect(ctx context.Context, limit time.Duration, made func(cookie uint64),
	protocols ...string) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	d := p.dialer(made)
	d.Timeout = limit
	raw, err := d.DialContext(ctx, "tcp", p.addr.String())
	if err != nil {
		return nil, err
	}

	conn := tls.Client(raw, &tls.Config{InsecureSkipVerify: true, NextProtos: protocols,
		MinVersion: tls.VersionTLS12})
	if err := conn.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, err
	}
	return conn, nil
}

// dialer returns a dialer that marks each socket and passes its cookie to made before it connects.
func (p probe) dialer(made func(cookie uint64)) *net.Dialer {
	control := func(_, _ string, raw syscall.RawConn) error {
		var cookie uint64
		var err error
		rawErr := raw.Control(func(fd uintptr) {
			cookie, err = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_COOKIE)
			if p.mark != 0 {
				err = errors.Join(err,
					unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(p.mark)))
			}
		})
		if err == nil && rawErr == nil {
			made(cookie)
		}
		return errors.Join(rawErr, err)
	}
	return &net.Dialer{Control: control}
}

// hold probes over conn until it ends. It reports the server up after the first answered ping,
// since a handshake alone proves too little, and down after an unanswered one. It returns false if
// conn does not speak HTTP/2; then it reports the server up by the handshake.
func (p probe) hold(ctx context.Context, conn *tls.Conn) bool {
	state := conn.ConnectionState()
	seen := observation{up: true}
	p.judge(state, &seen)
	if state.NegotiatedProtocol != http2.NextProtoTLS {
		p.report(seen)
		return false
	}

	h := newHolding(p, conn, seen)
	defer h.close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if h.run(ctx) && ctx.Err() == nil {
		p.report(observation{})
	}
	return true
}

// judge verifies the certificate of a server and notes the outcome in o.
func (p probe) judge(state tls.ConnectionState, o *observation) {
	if p.verify == nil {
		return
	}
	if err := p.verify(state); err != nil {
		o.trust, o.distrust = trustRefused, err
		return
	}

	o.trust, o.named = trusted, nil
	for _, a := range p.names {
		if len(state.PeerCertificates) > 0 &&
			state.PeerCertificates[0].VerifyHostname(a.Addr().Unmap().String()) == nil {
			o.named = append(o.named, a)
		}
	}
}
