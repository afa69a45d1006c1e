package prober

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

	"github.com/kubeveil/kubeveil/internal/poll"
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
	// the server is silent, because the kernel would send its second SYN only a second after the
	// first.
	connectLimit, silentLimit = 2 * time.Second, 500 * time.Millisecond
)

// http1 is HTTP/1.1 in ALPN (RFC 7301).
const http1 = "http/1.1"

// Target is the task of probing one server.
type Target struct {
	// Addr is the address of the server.
	Addr netip.AddrPort
	// Report receives the observations.
	Report func(Observation)
	// Verify verifies the certificate of a server; nil means that it cannot be verified.
	Verify func(tls.ConnectionState) error
	// Names are the addresses that the probe looks for in the server's certificate. Mark is the
	// mark of the probe's sockets (SO_MARK).
	Names []netip.AddrPort
	Mark  uint32
	// Own receives the sockets of the probe.
	Own *Cookies
	// Ask makes the probe ping at once when it receives a value.
	Ask <-chan struct{}
	// Pace decides the pauses between probes.
	Pace *Pace
}

// Run probes a server and reports again and again until ctx ends. It holds one TLS connection to
// the server and sends HTTP/2 pings (RFC 9113 section 6.7). The end of the process closes the
// connection; the end of the machine leaves pings unanswered. One handshake per second would detect
// both ends later, at a hundred times the cost. Servers close idle connections, so Run connects
// again at once. A server without HTTP/2 is probed by handshakes alone.
func Run(ctx context.Context, p Target) {
	silent, report := false, p.Report
	p.Report = func(o Observation) {
		silent = !o.Up
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
		_ = poll.Pause(ctx, p.Pace.connect()-time.Since(began))
	}
}

// once connects within a limit, and reports until the connection ends. It returns whether the
// server spoke HTTP/2.
func (p Target) once(ctx context.Context, limit time.Duration) (held bool) {
	var cookie uint64
	defer func() { p.Own.remove(cookie) }()
	conn, err := p.connect(ctx, limit, func(c uint64) {
		cookie = c
		p.Own.add(c)
	}, http2.NextProtoTLS, http1)

	switch {
	case err == nil:
		defer conn.Close()
		return p.hold(ctx, conn)
	case ctx.Err() == nil:
		p.Report(Observation{})
	}
	return false
}

// connect returns a connection after its TLS handshake, for one of some protocols. limit bounds the
// TCP part. made receives the cookie of the socket before it connects. connect accepts any
// certificate; hold judges it. That is safe because the probe sends no secrets, and Status shows a
// wrong certificate as a problem.
func (p Target) connect(ctx context.Context, limit time.Duration, made func(cookie uint64),
	protocols ...string) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	d := p.dialer(made)
	d.Timeout = limit
	raw, err := d.DialContext(ctx, "tcp", p.Addr.String())
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
func (p Target) dialer(made func(cookie uint64)) *net.Dialer {
	control := func(_, _ string, raw syscall.RawConn) error {
		var cookie uint64
		var err error
		rawErr := raw.Control(func(fd uintptr) {
			cookie, err = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_COOKIE)
			if p.Mark != 0 {
				err = errors.Join(err,
					unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(p.Mark)))
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
// since a handshake alone proves too little, and down after an unanswered ping. It returns false if
// conn does not speak HTTP/2; then it reports the server up by the handshake.
func (p Target) hold(ctx context.Context, conn *tls.Conn) bool {
	state := conn.ConnectionState()
	seen := Observation{Up: true}
	p.judge(state, &seen)
	if state.NegotiatedProtocol != http2.NextProtoTLS {
		p.Report(seen)
		return false
	}

	h := newHolding(p, conn, seen)
	defer h.close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if h.run(ctx) && ctx.Err() == nil {
		p.Report(Observation{})
	}
	return true
}

// judge verifies the certificate of a server and notes the outcome in o.
func (p Target) judge(state tls.ConnectionState, o *Observation) {
	if p.Verify == nil {
		return
	}
	if err := p.Verify(state); err != nil {
		o.Trust, o.Distrust = TrustRefused, err
		return
	}

	o.Trust, o.Named = Trusted, nil
	for _, a := range p.Names {
		if len(state.PeerCertificates) > 0 &&
			state.PeerCertificates[0].VerifyHostname(a.Addr().Unmap().String()) == nil {
			o.Named = append(o.Named, a)
		}
	}
}
