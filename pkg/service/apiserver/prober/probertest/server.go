// Package probertest has the server that tests of probes probe. Imported by tests only.
package probertest

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"testing"
)

// Serve starts a TLS server for the time of a test, with or without HTTP/2. freeze stops its reads,
// as if the machine lost power. end stops the server.
func Serve(t testing.TB, http2 bool, handler http.HandlerFunc) (addr netip.AddrPort, freeze func(),
	end func()) {
	t.Helper()
	s := httptest.NewUnstartedServer(handler)
	l := &frozenListener{Listener: s.Listener}
	s.Listener = l
	s.EnableHTTP2 = http2
	s.StartTLS()
	end = sync.OnceFunc(func() { l.thaw(); s.CloseClientConnections(); s.Close() })
	t.Cleanup(end)
	return s.Listener.Addr().(*net.TCPAddr).AddrPort(), l.freeze, end
}

// frozenListener accepts connections. While it is frozen, their reads block, as if the machine lost
// power.
type frozenListener struct {
	net.Listener
	mu     sync.Mutex
	frozen chan struct{}
}

func (l *frozenListener) freeze() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.frozen = make(chan struct{})
}

func (l *frozenListener) thaw() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.frozen != nil {
		close(l.frozen)
		l.frozen = nil
	}
}

func (l *frozenListener) wait() {
	l.mu.Lock()
	frozen := l.frozen
	l.mu.Unlock()
	if frozen != nil {
		<-frozen
	}
}

func (l *frozenListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &frozenConn{c, l}, nil
}

type frozenConn struct {
	net.Conn
	l *frozenListener
}

func (c *frozenConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.l.wait()
	return n, err
}
