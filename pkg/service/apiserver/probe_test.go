package apiserver

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// testServer is a TLS server, with HTTP/2 or without; its connections can be frozen.
func testServer(t *testing.T, http2 bool) (addr netip.AddrPort, freeze func(), end func()) {
	t.Helper()
	return serve(t, http2, http.NotFound)
}

// serve is testServer with a handler.
func serve(t *testing.T, http2 bool, handler http.HandlerFunc) (addr netip.AddrPort, freeze func(),
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

// frozenListener accepts connections whose reads end only when they are thawed, as of a machine
// without power.
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

// probing runs the prober. The channel receives from each of its reports whether the server is up.
func probing(t *testing.T, addr netip.AddrPort, tweaks ...func(*probe)) <-chan bool {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	said, done := make(chan bool, 100), make(chan struct{})
	p := probe{addr: addr, own: &ownSockets{}, pace: &pace{}, report: func(o observation) { said <- o.up }}
	for _, tweak := range tweaks {
		tweak(&p)
	}
	go func() {
		defer close(done)
		probeServer(ctx, p)
	}()
	t.Cleanup(func() { cancel(); <-done })
	return said
}

// until waits until the prober reports up, and returns how long that took.
func until(t *testing.T, said <-chan bool, up bool) time.Duration {
	t.Helper()
	began, late := time.Now(), time.After(10*time.Second)
	for {
		select {
		case got := <-said:
			if got == up {
				return time.Since(began)
			}
		case <-late:
			t.Fatalf("the prober does not say %t", up)
		}
	}
}

func TestProbeOfAServerThatEnds(t *testing.T) {
	for name, http2 := range map[string]bool{"with HTTP/2": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			addr, _, end := testServer(t, http2)
			said := probing(t, addr)
			until(t, said, true)
			go end()
			t.Logf("a server that ended was found out after %v", until(t, said, false))
		})
	}
}

// A server that is too busy to answer pings may still shake hands: it is not up and down by turns.
func TestProbeOfAServerThatOnlyShakesHands(t *testing.T) {
	certified := httptest.NewUnstartedServer(nil)
	certified.StartTLS()
	defer certified.Close()
	l, err := tls.Listen("tcp", "127.0.0.1:0",
		&tls.Config{Certificates: certified.TLS.Certificates, NextProtos: []string{"h2"}})
	errtest.Must(t, err)

	served := make(chan struct{})
	go func() {
		defer close(served)
		var conns []net.Conn
		for {
			c, err := l.Accept()
			if err != nil {
				break
			}
			conns = append(conns, c)
			_ = c.(*tls.Conn).Handshake()
		}
		for _, c := range conns {
			c.Close()
		}
	}()

	t.Cleanup(func() { l.Close(); <-served })
	said := probing(t, l.Addr().(*net.TCPAddr).AddrPort())
	for range 2 {
		select {
		case up := <-said:
			if up {
				t.Error("a server that answers no ping is up")
			}
		case <-time.After(10 * time.Second):
			t.Fatal("the prober says nothing")
		}
	}
}

// A machine that is gone answers nothing, and ends no connection.
func TestProbeOfAServerThatFallsSilent(t *testing.T) {
	addr, freeze, _ := testServer(t, true)
	said := probing(t, addr)
	until(t, said, true)
	freeze()
	took := until(t, said, false)
	t.Logf("a silent server was found out after %v", took)
	// the machine that tests may be slow; by itself it is their sum
	if took > leastPing+pingLimit+2*time.Second {
		t.Errorf("that took %v", took)
	}
}

// While a server is silent, the SYN of each connect is new: one of the kernel's own would come a
// second after the first, and the probe would connect every 2.5 s.
func TestSilentServersGetNewSYNs(t *testing.T) {
	t.Parallel()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	errtest.Must(t, err)
	defer unix.Close(fd)
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}),
		unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	errtest.Must(t, err)
	at := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"),
		uint16(name.(*unix.SockaddrInet4).Port))

	full, err := net.Dial("tcp", at.String()) // from here on it drops SYNs
	errtest.Must(t, err)
	defer full.Close()

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	tries := make(chan struct{}, 100)
	p := probe{addr: at, own: new(ownSockets), pace: new(pace), report: func(o observation) {
		if o.up {
			t.Error("a server that accepts nothing counts as up")
		}
		tries <- struct{}{}
	}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		probeServer(ctx, p)
	}()
	nettest.Until(t, 5*connectLimit, "six connects", func() bool { return len(tries) >= 6 })
	cancel()
	<-done
}
