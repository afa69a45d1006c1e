package keeper

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// A connection of a pod to a node that does not answer is closed once it waits for an
// acknowledgement, and an idle one later. Connections to other nodes stay.
func TestConnectionsToSilentNodesEnd(t *testing.T) {
	pod, far := nettest.NewNS(t), nettest.NewNS(t)
	nettest.Veth(t, nettest.End{NS: pod, Name: "eth0", Addrs: nettest.Prefixes("10.244.0.5/24")},
		nettest.End{NS: far, Name: "eth0", Addrs: nettest.Prefixes("10.245.1.5/24", "10.245.2.5/24")})
	for _, p := range []string{"10.245.1.0/24", "10.245.2.0/24"} {
		nettest.AddRoute(t, pod, netip.MustParsePrefix(p), netip.Addr{}, "eth0")
	}
	nettest.AddRoute(t, far, netip.MustParsePrefix("10.244.0.0/24"), netip.Addr{}, "eth0")
	var l net.Listener
	far.Run(t, func() (err error) {
		l, err = net.Listen("tcp", ":80")
		return err
	})
	defer l.Close()
	connect := func(to string) (c net.Conn) {
		t.Helper()
		pod.Run(t, func() (err error) {
			c, err = net.DialTimeout("tcp", net.JoinHostPort(to, "80"), 5*time.Second)
			return err
		})
		accepted, err := l.Accept()
		errtest.Must(t, err)
		t.Cleanup(func() { c.Close(); accepted.Close() })
		return c
	}
	idle, waits, other := connect("10.245.1.5"), connect("10.245.1.5"), connect("10.245.2.5")

	s := newSilentNodes(func() ([]string, error) { return []string{pod.Path(), "/nowhere"}, nil },
		slog.New(slog.DiscardHandler))
	began := time.Now()
	once := func(now time.Time) int {
		t.Helper()
		n, _, err := s.once(now)
		errtest.Must(t, err)
		return n
	}
	if s.set(nil, began); once(began) != 0 || len(s.wake) != 0 {
		t.Error("without a silent node a connection ends")
	}
	s.set(nettest.Prefixes("10.245.1.0/24"), began)
	if n := once(began); n != 0 || len(s.wake) != 1 {
		t.Errorf("%d connections that wait for nothing end", n)
	}
	far.Run(t, func() error { return nettest.Command("ip", "link", "set", "eth0", "down") })
	for _, c := range []net.Conn{waits, other} {
		_, err := c.Write([]byte("x"))
		errtest.Must(t, err)
	}
	nettest.Until(t, 10*time.Second, "the connection that waits ends",
		func() bool { return once(began) == 1 })
	if _, err := waits.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNABORTED) {
		t.Errorf("the connection that waits: %v", err)
	}

	s.set(nettest.Prefixes("10.245.1.0/24"), began.Add(closeIdleAfter)) // It has been silent since began.
	if n := once(began.Add(closeIdleAfter)); n != 1 || s.closed.Load() != 2 {
		t.Errorf("%d idle connections end, %d are counted", n, s.closed.Load())
	}
	if _, err := idle.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNABORTED) {
		t.Errorf("the idle connection: %v", err)
	}
	s.set(nil, began)
	if n, any, err := s.once(began.Add(time.Hour)); n != 0 || any || err != nil {
		t.Errorf("%d connections to nodes that answer end: %v", n, err)
	}
}
