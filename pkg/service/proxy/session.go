package proxy

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"strconv"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	// writeLimit bounds a write to a server that does not read.
	writeLimit = pingLimit
	// mostHeader bounds the header of an answer.
	mostHeader = 16 << 10
)

// session is an HTTP/2 connection (RFC 9113) with as much as a probe needs: pings, and GET of
// /readyz without credentials.
type session struct {
	conn   *tls.Conn
	framer *http2.Framer
	// acks has a value for each answered ping, answers one for each answered request. ended has the
	// error of the connection and is closed after it.
	acks    chan struct{}
	answers chan answer
	ended   chan error

	mu     sync.Mutex // guards writes, and stream
	stream uint32     // the stream of the last request
}

// answer is the header of an answer to a request. Status 0 means that the server reset the request.
type answer struct {
	stream uint32
	status int
}

// newSession sends the connection preface of a client (RFC 9113 section 3.4) and begins to read. The
// reader ends when conn is closed.
func newSession(conn *tls.Conn) *session {
	s := &session{conn: conn, framer: http2.NewFramer(conn, conn), acks: make(chan struct{}, 1),
		answers: make(chan answer, 1), ended: make(chan error, 1)}
	s.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	s.framer.MaxHeaderListSize = mostHeader
	err := s.write(func() error {
		if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
			return err
		}
		return s.framer.WriteSettings(http2.Setting{ID: http2.SettingEnablePush, Val: 0})
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

// ping sends a ping.
func (s *session) ping() error {
	return s.write(func() error {
		return s.framer.WritePing(false, [8]byte{'v', 'e', 'i', 'l', 'd'})
	})
}

// get sends a request for a path and returns its stream.
func (s *session) get(path string) (stream uint32, err error) {
	var header bytes.Buffer
	enc := hpack.NewEncoder(&header)
	enc.SetMaxDynamicTableSizeLimit(0)
	for _, f := range [][2]string{{":method", "GET"}, {":scheme", "https"},
		{":authority", "kubernetes.default.svc"}, {":path", path}, {"user-agent", "veild"}} {
		if err := enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
			return 0, err
		}
	}

	err = s.write(func() error {
		if s.stream == 0 {
			s.stream = 1
		} else {
			s.stream += 2
		}
		stream = s.stream
		return s.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream,
			BlockFragment: header.Bytes(), EndStream: true, EndHeaders: true})
	})
	return stream, err
}

// cancel gives up a request.
func (s *session) cancel(stream uint32) error {
	return s.write(func() error { return s.framer.WriteRSTStream(stream, http2.ErrCodeCancel) })
}

// errGoAway is the error of a connection on which the server sent GOAWAY.
var errGoAway = errors.New("the server ends the connection")

// read reads a frame and answers it.
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
		default: // one is enough: only one ping is outstanding
		}
	case *http2.SettingsFrame:
		if !f.IsAck() {
			return s.write(s.framer.WriteSettingsAck)
		}
	case *http2.MetaHeadersFrame:
		status, err := strconv.Atoi(f.PseudoValue("status"))
		if err != nil {
			return err
		}
		s.answer(answer{f.StreamID, status})
	case *http2.RSTStreamFrame:
		s.answer(answer{f.StreamID, 0})
	case *http2.DataFrame:
		if f.Length > 0 { // of the connection's window; a stream's is larger than a body
			return s.write(func() error { return s.framer.WriteWindowUpdate(0, f.Length) })
		}
	case *http2.GoAwayFrame:
		return errGoAway
	}
	return nil
}

// answer passes an answer on. An unread older one is of a request that was given up.
func (s *session) answer(a answer) {
	for {
		select {
		case s.answers <- a:
			return
		default:
		}
		select {
		case <-s.answers:
		default:
		}
	}
}
