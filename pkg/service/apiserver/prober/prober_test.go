package prober

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service/apiserver/prober/probertest"
)

// probing runs the prober. The channel receives from each of its reports whether the server is up.
func probing(t *testing.T, addr netip.AddrPort, tweaks ...func(*Target)) <-chan bool {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	said, done := make(chan bool, 100), make(chan struct{})
	p := Target{Addr: addr, Own: &Cookies{}, Pace: &Pace{},
		Report: func(o Observation) { said <- o.Up }}
	for _, tweak := range tweaks {
		tweak(&p)
	}
	go func() {
		defer close(done)
		Run(ctx, p)
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
			t.Fatalf("the prober does not report up as %t", up)
		}
	}
}

func TestProbeOfAServerThatEnds(t *testing.T) {
	for name, http2 := range map[string]bool{"with HTTP/2": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			addr, _, end := probertest.Serve(t, http2, http.NotFound)
			said := probing(t, addr)
			until(t, said, true)
			go end()
			t.Logf("a server that ended was found out after %v", until(t, said, false))
		})
	}
}

// A server that is too busy to answer pings may still complete handshakes. It must not alternate
// between up and down.
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
				t.Error("a server that does not answer pings is up")
			}
		case <-time.After(10 * time.Second):
			t.Fatal("the prober reports nothing")
		}
	}
}

// A machine that disappears neither answers nor ends connections.
func TestProbeOfAServerThatFallsSilent(t *testing.T) {
	addr, freeze, _ := probertest.Serve(t, true, http.NotFound)
	said := probing(t, addr)
	until(t, said, true)
	freeze()
	took := until(t, said, false)
	t.Logf("a silent server was found out after %v", took)
	// without the allowance for a slow test machine, it is the sum of the two
	if took > LeastPing+pingLimit+2*time.Second {
		t.Errorf("finding a silent server took %v", took)
	}
}

// While a server is silent, each connect sends a new SYN. If the probe waited for the kernel's
// retransmission after a second, it would connect only every 2.5 s.
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
	p := Target{Addr: at, Own: new(Cookies), Pace: new(Pace), Report: func(o Observation) {
		if o.Up {
			t.Error("a server that accepts nothing counts as up")
		}
		tries <- struct{}{}
	}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		Run(ctx, p)
	}()
	nettest.Until(t, 5*connectLimit, "six connects", func() bool { return len(tries) >= 6 })
	cancel()
	<-done
}

// A probe looks for the addresses in the certificate only if the certificate is verified.
func TestProbesReadNames(t *testing.T) {
	// Its certificate names 127.0.0.1 and ::1.
	addr, _, _ := probertest.Serve(t, true, http.NotFound)
	wanted := []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:6443"),
		netip.MustParseAddrPort("192.0.2.1:6443"), netip.MustParseAddrPort("[::1]:6443")}

	for name, c := range map[string]struct {
		verify func(tls.ConnectionState) error
		want   []netip.AddrPort
	}{
		"verified": {func(tls.ConnectionState) error { return nil },
			[]netip.AddrPort{wanted[0], wanted[2]}},
		"wrong":        {func(tls.ConnectionState) error { return errors.New("another CA") }, nil},
		"not verified": {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			seen := make(chan Observation, 100)

			probing(t, addr, func(p *Target) {
				p.Names, p.Verify, p.Report = wanted, c.verify, func(o Observation) { seen <- o }
			})
			select {
			case o := <-seen:
				if !o.Up || !slices.Equal(o.Named, c.want) {
					t.Errorf("observed %+v, want the names %v", o, c.want)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("the probe reports nothing")
			}
		})
	}
}

// Each socket of a probe has its mark before it connects, because programs read the mark at
// connect.
func TestProbesAreMarked(t *testing.T) {
	nettest.NeedCapability(t, unix.CAP_NET_ADMIN, "sets SO_MARK")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	errtest.Must(t, err)
	defer l.Close()
	const mark = 0x1000
	conn, err := (Target{Mark: mark}).dialer(func(uint64) {}).DialContext(t.Context(), "tcp",
		l.Addr().String())
	errtest.Must(t, err)
	defer conn.Close()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	errtest.Must(t, err)

	var got int
	var gotErr error
	if err := raw.Control(func(fd uintptr) {
		got, gotErr = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK)
	}); err != nil || gotErr != nil || got != mark {
		t.Errorf("the mark is %#x, %v, %v; want %#x", got, err, gotErr, mark)
	}
}
