package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/sys/unix"
)

const (
	// pingLimit is the time limit of a ping. A server that vanishes is detected within the sum of
	// this and the pause between pings: 0.75 s in a cluster of up to 1,000 nodes.
	pingLimit = 500 * time.Millisecond
	// connectLimit bounds a connect with its TLS handshake.
	connectLimit = 2 * time.Second
)

// probe is the task of probing one server.
type probe struct {
	addr netip.AddrPort
	// report receives whether the server answers.
	report func(up bool)
	// own learns the sockets of the probe.
	own *ownSockets
	// ask is received from when a ping is wanted at once.
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
	for ctx.Err() == nil {
		began := time.Now()
		held := p.once(ctx)
		if held && time.Since(began) > leastConnect {
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(p.pace.connect()):
		}
	}
}

// once connects, and reports until the connection ends. It returns whether the server spoke HTTP/2.
func (p probe) once(ctx context.Context) (held bool) {
	var cookie uint64
	defer func() { p.own.remove(cookie) }()
	conn, err := connect(ctx, p.addr, func(c uint64) {
		cookie = c
		p.own.add(c)
	})

	switch {
	case err == nil:
		defer conn.Close()
		return p.hold(ctx, conn)
	case ctx.Err() == nil:
		p.report(false)
	}
	return false
}

// connect returns a connection after its TLS handshake. made receives the cookie of the socket
// before it connects. It does not verify the certificate: the
// probe sends no secrets, and clients verify the server themselves.
func connect(ctx context.Context, addr netip.AddrPort, made func(cookie uint64)) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	control := func(_, _ string, raw syscall.RawConn) error {
		var cookie uint64
		var err error
		rawErr := raw.Control(func(fd uintptr) {
			cookie, err = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_COOKIE)
		})
		if err == nil && rawErr == nil {
			made(cookie)
		}
		return errors.Join(rawErr, err)
	}
	d := tls.Dialer{NetDialer: &net.Dialer{Control: control}, Config: &tls.Config{InsecureSkipVerify: true,
		NextProtos: []string{http2.NextProtoTLS, "http/1.1"}, MinVersion: tls.VersionTLS12}}
	conn, err := d.DialContext(ctx, "tcp", addr.String())
	if err != nil {
		return nil, err
	}
	return conn.(*tls.Conn), nil
}

// hold sends pings over conn until it ends. It reports the server up after the first answered ping,
// since a handshake alone proves too little. It reports the server down after an unanswered ping.
// It returns false if conn does not speak HTTP/2; then it reports the server up by the handshake.
func (p probe) hold(ctx context.Context, conn *tls.Conn) bool {
	if conn.ConnectionState().NegotiatedProtocol != http2.NextProtoTLS {
		p.report(true)
		return false
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	framer := http2.NewFramer(conn, conn)
	err := errors.Join(conn.SetDeadline(time.Now().Add(pingLimit)), greet(conn, framer))
	if err == nil {
		err = ping(conn, framer)
	}

	answered := err == nil
	if ctx.Err() == nil {
		p.report(answered)
	}

	next := time.NewTimer(p.pace.phase())
	defer next.Stop()
	for err == nil {
		select {
		case <-ctx.Done():
			return true
		case <-next.C:
		case <-p.ask:
		}
		next.Reset(p.pace.ping())
		err = ping(conn, framer)
	}

	if answered && errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() == nil {
		p.report(false)
	}
	return true
}

// greet sends the connection preface of an HTTP/2 client (RFC 9113 section 3.4).
func greet(conn *tls.Conn, framer *http2.Framer) error {
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		return err
	}
	return framer.WriteSettings()
}

// errGoAway is the error of a connection on which the server sent GOAWAY.
var errGoAway = errors.New("the server ends the connection")

// ping sends one ping and waits for its answer. Meanwhile it answers pings and settings of the
// server.
func ping(conn *tls.Conn, framer *http2.Framer) error {
	if err := conn.SetDeadline(time.Now().Add(pingLimit)); err != nil {
		return err
	}
	err := framer.WritePing(false, [8]byte{'v', 'e', 'i', 'l', 'd'})
	for err == nil {
		var frame http2.Frame
		if frame, err = framer.ReadFrame(); err != nil {
			return err
		}
		switch f := frame.(type) {
		case *http2.PingFrame:
			if f.IsAck() {
				return nil
			}
			err = framer.WritePing(true, f.Data)
		case *http2.SettingsFrame:
			if !f.IsAck() {
				err = framer.WriteSettingsAck()
			}
		case *http2.GoAwayFrame:
			return errGoAway
		}
	}
	return err
}
