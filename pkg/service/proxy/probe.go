package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/netip"
	"os"
	"time"

	"golang.org/x/net/http2"
)

const (
	// pingEvery and pingLimit: a server that vanished is found out within their sum, 0.75 s.
	pingEvery, pingLimit = 250 * time.Millisecond, 500 * time.Millisecond
	// connectLimit bounds a connection and its handshake, probeEvery is the pause between them.
	connectLimit, probeEvery = 2 * time.Second, 500 * time.Millisecond
)

// prober says of a server, again and again until ctx ends, whether it answers.
type prober func(ctx context.Context, addr netip.AddrPort, report func(up bool))

// probeServer holds one TLS connection to the server and pings it (RFC 9113 section 6.7): what ends
// a process ends the connection, and what ends a machine its answers. A handshake a second would
// find neither in time and cost both sides a hundred times as much. A connection that ends is made
// again at once, since servers end idle ones. With a server that does not speak HTTP/2 the
// handshakes are all there is.
func probeServer(ctx context.Context, addr netip.AddrPort, report func(up bool)) {
	for ctx.Err() == nil {
		began := time.Now()
		held := false
		conn, err := connect(ctx, addr)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			held = hold(ctx, conn, report)
			conn.Close()
		} else {
			report(false)
		}
		if held && time.Since(began) > probeEvery {
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(probeEvery):
		}
	}
}

// connect makes a connection and its handshake. Who the server is, is not asked: nothing is told to
// it, and programs that connect there ask themselves.
func connect(ctx context.Context, addr netip.AddrPort) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true,
		NextProtos: []string{http2.NextProtoTLS, "http/1.1"}, MinVersion: tls.VersionTLS12}}
	conn, err := d.DialContext(ctx, "tcp", addr.String())
	if err != nil {
		return nil, err
	}
	return conn.(*tls.Conn), nil
}

// hold pings over conn until it ends. The server answers from the first ping that it answers, a
// handshake alone is no sign of it; and no more when a ping has no answer. It is false when conn
// cannot be pinged: then the handshake is all there is.
func hold(ctx context.Context, conn *tls.Conn, report func(up bool)) bool {
	if conn.ConnectionState().NegotiatedProtocol != http2.NextProtoTLS {
		report(true)
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
		report(answered)
	}

	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for err == nil {
		select {
		case <-ctx.Done():
			return true
		case <-tick.C:
			err = ping(conn, framer)
		}
	}

	if answered && errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() == nil {
		report(false)
	}
	return true
}

// greet says what a client of HTTP/2 says first (RFC 9113 section 3.4).
func greet(conn *tls.Conn, framer *http2.Framer) error {
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		return err
	}
	return framer.WriteSettings()
}

// errGoAway is that the server wants to end the connection.
var errGoAway = errors.New("the server ends the connection")

// ping asks once, waits for the answer, and answers what the server asks meanwhile.
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
