package prober

import (
	"crypto/tls"
	"errors"
	"io"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

// writeLimit bounds a write to a server that does not read.
const writeLimit = pingLimit

// session is an HTTP/2 connection (RFC 9113) for pings.
type session struct {
	conn   *tls.Conn
	framer *http2.Framer
	// acks has a value for each answered ping. ended receives the error that ended the connection,
	// and is then closed.
	acks  chan struct{}
	ended chan error

	mu sync.Mutex // guards writes
}

// newSession sends the connection preface of a client (RFC 9113 section 3.4) and begins to read.
// The reader ends when conn is closed.
func newSession(conn *tls.Conn) *session {
	s := &session{conn: conn, framer: http2.NewFramer(conn, conn), acks: make(chan struct{}, 1),
		ended: make(chan error, 1)}
	err := s.write(func() error {
		if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
			return err
		}
		return s.framer.WriteSettings()
	})
	go func() {
		defer close(s.ended)
		for err == nil {
			err = s.read()
		}
		s.ended <- err
	}()
	return s
}

// close closes the connection and waits for the reader.
func (s *session) close() {
	s.conn.Close()
	for range s.ended {
	}
}

func (s *session) write(f func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.conn.SetWriteDeadline(time.Now().Add(writeLimit)); err != nil {
		return err
	}
	return f()
}

func (s *session) ping() error {
	return s.write(func() error {
		return s.framer.WritePing(false, [8]byte{'v', 'e', 'i', 'l', 'd'})
	})
}

// errGoAway is the error of a connection on which the server sent GOAWAY.
var errGoAway = errors.New("the server ends the connection")

func (s *session) read() error {
	frame, err := s.framer.ReadFrame()
	if err != nil {
		return err
	}

	switch f := frame.(type) {
	case *http2.PingFrame:
		if !f.IsAck() {
			return s.write(func() error { return s.framer.WritePing(true, f.Data) })
		}
		select {
		case s.acks <- struct{}{}:
		default: // one value is enough, because only one ping is outstanding
		}
	case *http2.SettingsFrame:
		if !f.IsAck() {
			return s.write(s.framer.WriteSettingsAck)
		}
	case *http2.GoAwayFrame:
		return errGoAway
	}
	return nil
}
