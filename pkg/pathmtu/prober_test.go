package pathmtu_test

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/pathmtu"
)

// init locks the main goroutine to the main thread, whose namespaces /proc/self shows. So no test
// can run on that thread and change them.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

var fast = pathmtu.Timing{Interval: 200 * time.Millisecond, RaiseInterval: time.Second,
	RetryMin: 50 * time.Millisecond, Tries: 3}

// start runs a Prober in ns until the test ends.
func start(t *testing.T, ns *nettest.NS, source netip.Addr,
	found func(pathmtu.Peer, int)) *pathmtu.Prober {
	t.Helper()
	return startWith(t, ns, pathmtu.ProberConfig{Sources: []netip.Addr{source}, Found: found})
}

// startWith is like start with other options; the test sets their timing and log.
func startWith(t *testing.T, ns *nettest.NS, o pathmtu.ProberConfig) *pathmtu.Prober {
	t.Helper()
	o.Timing, o.Timeout, o.Log = fast, 100*time.Millisecond, slog.New(slog.DiscardHandler)
	p := pathmtu.New(o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- ns.Do(func() error { return p.Run(ctx) })
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("run: %v", err)
		}
	})
	return p
}

// TestNarrowPathIsFoundAndLeftAgain has two nodes with a black hole between them. A veth that
// silently drops packets larger than its MTU stands for the path and the tunnel.
//
//	a: big 1500 ══ bridge ns: big 1500 → narrow link, drops → ══ b
func TestNarrowPathIsFoundAndLeftAgain(t *testing.T) {
	for _, tc := range []struct {
		name string
		a, b string
		want int
	}{
		{"ipv4", "198.18.7.1", "198.18.7.2", 1392},
		{"ipv6", "fd42:7::1", "fd42:7::2", 1392},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, b := nettest.NewNS(t), nettest.NewNS(t)
			addrA, addrB := netip.MustParseAddr(tc.a), netip.MustParseAddr(tc.b)
			bits := addrA.BitLen() - 8
			nettest.Veth(t,
				nettest.End{NS: a, Name: "veil0", MTU: 1500,
					Addrs: []netip.Prefix{netip.PrefixFrom(addrA, bits)}},
				nettest.End{NS: b, Name: "veil0", MTU: 1500,
					Addrs: []netip.Prefix{netip.PrefixFrom(addrB, bits)}})
			var mu sync.Mutex
			last := 0
			p := start(t, a, addrA, func(_ pathmtu.Peer, mtu int) {
				mu.Lock()
				defer mu.Unlock()
				last = mtu
			})

			q := start(t, b, addrB, nil)
			found := func(want int) func() bool {
				return func() bool {
					mu.Lock()
					defer mu.Unlock()
					return last == want
				}
			}
			p.SetPeers([]pathmtu.Peer{{Name: "b", Device: "veil0", Addr: addrB, DeviceMTU: 1500}})
			q.SetPeers([]pathmtu.Peer{{Name: "a", Device: "veil0", Addr: addrA, DeviceMTU: 1500}})

			blackHole(t, b, 1400)
			nettest.Until(t, 20*time.Second, "the narrow path", found(tc.want))
			blackHole(t, b, 1500)
			nettest.Until(t, 20*time.Second, "the wide path", found(1500))
		})
	}
}

// A path without traffic is not probed; with traffic it is.
func TestProbesWaitForTraffic(t *testing.T) {
	a, b := nettest.NewNS(t), nettest.NewNS(t)
	addrA, addrB := netip.MustParseAddr("198.18.7.1"), netip.MustParseAddr("198.18.7.2")
	nettest.Veth(t,
		nettest.End{NS: a, Name: "veil0", MTU: 1500,
			Addrs: []netip.Prefix{netip.PrefixFrom(addrA, 24)}},
		nettest.End{NS: b, Name: "veil0", MTU: 1500,
			Addrs: []netip.Prefix{netip.PrefixFrom(addrB, 24)}})
	wire := nettest.NewCapture(t, b, nettest.SnifferOptions{Link: "veil0"})
	var asked, sent, found atomic.Int64
	p := startWith(t, a, pathmtu.ProberConfig{
		Sources: []netip.Addr{addrA},
		Found:   func(_ pathmtu.Peer, mtu int) { found.Store(int64(mtu)) },
		Traffic: func(pathmtu.Peer) (pathmtu.Traffic, bool) {
			asked.Add(1)
			return pathmtu.Traffic{Sent: sent.Load(), At: time.Now()}, true
		},
	})

	q := start(t, b, addrB, nil)
	q.SetPeers([]pathmtu.Peer{{Name: "a", Device: "veil0", Addr: addrA, DeviceMTU: 576}})
	p.SetPeers([]pathmtu.Peer{{Name: "b", Device: "veil0", Addr: addrB, DeviceMTU: 1500}})
	blackHole(t, b, 1400)
	nettest.Until(t, 20*time.Second, "two looks at an idle peer",
		func() bool { return asked.Load() >= 2 })

	for _, f := range wire.All(t) {
		if len(f.Data) > 600 {
			t.Fatalf("an idle peer was sent a probe of %d bytes", len(f.Data))
		}
	}

	sent.Store(1 << 20)
	nettest.Until(t, 20*time.Second, "the narrow path", func() bool { return found.Load() == 1392 })
}

// blackHole makes the far end silently drop every packet longer than mtu: a veth drops packets
// above the MTU of its receiving end.
func blackHole(t *testing.T, ns *nettest.NS, mtu int) {
	t.Helper()
	ns.OnLink("veil0", func(h *nl.Handle, l nl.Link) error { return h.LinkSetMTU(l, mtu) })
}

// TestStrangersGetNoAnswer sends probes from an address that belongs to no peer.
func TestStrangersGetNoAnswer(t *testing.T) {
	a, b := nettest.NewNS(t), nettest.NewNS(t)
	addrA, other, addrB := netip.MustParseAddr("198.18.7.1"), netip.MustParseAddr("198.18.7.3"),
		netip.MustParseAddr("198.18.7.2")
	nettest.Veth(t,
		nettest.End{NS: a, Name: "veil0", Addrs: []netip.Prefix{netip.PrefixFrom(addrA, 24),
			netip.PrefixFrom(other, 24)}},
		nettest.End{NS: b, Name: "veil0", Addrs: []netip.Prefix{netip.PrefixFrom(addrB, 24)}})
	q := start(t, b, addrB, nil)
	q.SetPeers([]pathmtu.Peer{{Name: "a", Device: "veil0", Addr: addrA, DeviceMTU: 1500}})
	probe := make([]byte, 100)
	copy(probe, "kvp1\x01")
	probe[16], probe[17] = 0, 128

	answered := func(from netip.Addr) bool {
		yes := false
		a.Run(t, func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			if err := unix.Bind(fd, &unix.SockaddrInet4{Port: 51821, Addr: from.As4()}); err !=
				nil {
				return err
			}
			if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO,
				&unix.Timeval{Usec: 200_000}); err != nil {
				return err
			}
			if err := unix.Sendto(fd, probe, 0,
				&unix.SockaddrInet4{Port: 51821, Addr: addrB.As4()}); err != nil {
				return err
			}

			buf := make([]byte, 2000)
			for {
				n, _, err := unix.Recvfrom(fd, buf, 0)
				if err != nil {
					return nil
				}
				if n == 24 && buf[4] == 2 {
					yes = true
					return nil
				}
			}
		})

		return yes
	}

	nettest.Until(t, 10*time.Second, "an answer to the peer",
		func() bool { return answered(addrA) })
	if answered(other) {
		t.Error("a stranger was answered")
	}
}
