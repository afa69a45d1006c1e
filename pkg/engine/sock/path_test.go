package sock

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

// opensIn opens the sockets of both families in a namespace.
func opensIn(t *testing.T, ns *nettest.NS) (v4, v6 *UDP, port uint16) {
	t.Helper()
	ns.Run(t, func() (err error) {
		v4, v6, port, err = Open(0, 0)
		return err
	})
	t.Cleanup(func() { v4.Close(); v6.Close() })
	return v4, v6, port
}

// twoPaths holds the addresses of two nodes that are connected by two veth pairs.
type twoPaths struct {
	name       string
	a0, b0     netip.Prefix // of the first cable, which node a's route takes
	a1, b1     netip.Prefix // of the second cable, on which the peer's datagrams come in
	loopback   netip.Prefix // where node b is reached
	everything netip.Prefix
}

var bothFamilies = []twoPaths{
	{"ipv4", netip.MustParsePrefix("198.18.0.1/24"), netip.MustParsePrefix("198.18.0.2/24"),
		netip.MustParsePrefix("198.18.1.1/24"), netip.MustParsePrefix("198.18.1.2/24"),
		netip.MustParsePrefix("198.18.9.2/32"), netip.MustParsePrefix("0.0.0.0/0")},
	{"ipv6", netip.MustParsePrefix("fd42:0:0:1::1/64"), netip.MustParsePrefix("fd42:0:0:1::2/64"),
		netip.MustParsePrefix("fd42:0:0:2::1/64"), netip.MustParsePrefix("fd42:0:0:2::2/64"),
		netip.MustParsePrefix("fd42:0:0:9::2/128"), netip.MustParsePrefix("::/0")},
}

// A datagram leaves by the link that the route chooses, not by the link on which the peer's
// datagram came in.
func TestRouteChoosesTheLink(t *testing.T) {
	for _, p := range bothFamilies {
		t.Run(p.name, func(t *testing.T) {
			a, b := nettest.NewNS(t), nettest.NewNS(t)
			nettest.Veth(t, nettest.End{NS: a, Name: "eth0", Addrs: []netip.Prefix{p.a0}},
				nettest.End{NS: b, Name: "eth0", Addrs: []netip.Prefix{p.b0}})
			nettest.Veth(t, nettest.End{NS: a, Name: "eth1", Addrs: []netip.Prefix{p.a1}},
				nettest.End{NS: b, Name: "eth1", Addrs: []netip.Prefix{p.b1}})
			nettest.AddAddr(t, b, "lo", p.loopback)
			nettest.AddRoute(t, a, p.everything, p.b0.Addr(), "eth0")

			from4, from6, _ := opensIn(t, a)
			to4, to6, port := opensIn(t, b)
			from, to := from4, to4
			if p.loopback.Addr().Is6() {
				from, to = from6, to6
			}

			var s Sender
			ep := &Endpoint{Addr: netip.AddrPortFrom(p.loopback.Addr(), port),
				Source: p.a0.Addr(), Interface: int32(a.Link("eth1").Attrs().Index)}
			r := receiver(t)
			var got []Message
			// The first ones of a new link may be lost.
			nettest.Until(t, 10*time.Second, "a datagram", func() bool {
				s.Add([]byte("hello"), 5, 0)
				if n := s.Flush(from, ep); n != 1 || s.SourceLost {
					t.Fatalf("%d datagrams were sent, source lost %v: %+v", n, s.SourceLost, s.Stats)
				}
				messages, err := r.Receive(to)
				if err != nil && !errors.Is(err, unix.EAGAIN) {
					t.Fatal(err)
				}
				got = messages
				return len(got) > 0
			})
			if link := int32(b.Link("eth0").Attrs().Index); got[0].From.Interface != link ||
				got[0].From.Addr.Addr() != p.a0.Addr() {
				t.Errorf("it came from %+v, want from %s by link %d", got[0].From, p.a0.Addr(), link)
			}
		})
	}
}

// A slow link with a long queue delays no datagram to a peer behind another link.
func TestSlowLinkHoldsUpNoOther(t *testing.T) {
	nettest.NeedProgram(t, "tc")
	for _, p := range bothFamilies {
		t.Run(p.name, func(t *testing.T) {
			a, slow, fast := nettest.NewNS(t), nettest.NewNS(t), nettest.NewNS(t)
			nettest.Veth(t, nettest.End{NS: a, Name: "eth0", Addrs: []netip.Prefix{p.a0}},
				nettest.End{NS: fast, Name: "eth0", Addrs: []netip.Prefix{p.b0}})
			nettest.Veth(t, nettest.End{NS: a, Name: "eth1", Addrs: []netip.Prefix{p.a1}},
				nettest.End{NS: slow, Name: "eth0", Addrs: []netip.Prefix{p.b1}})
			a.Run(t, func() error {
				return exec.Command("tc", "qdisc", "add", "dev", "eth1", "root", "tbf", "rate", "2mbit",
					"burst", "32kb", "limit", "64mb").Run()
			})

			from4, from6, _ := opensIn(t, a)
			to4, to6, port := opensIn(t, fast)
			from, to := from4, to4
			if p.a0.Addr().Is6() {
				from, to = from6, to6
			}
			flood := &Endpoint{Addr: netip.AddrPortFrom(p.b1.Addr(), port)}
			ep := &Endpoint{Addr: netip.AddrPortFrom(p.b0.Addr(), port)}
			var s Sender
			r := receiver(t)
			comes := func() int {
				s.Add([]byte("hello"), 5, 0)
				s.Flush(from, ep)
				return len(r.drain(t, to))
			}
			nettest.Until(t, 10*time.Second, "the first datagram", func() bool { return comes() > 0 })

			// More than the queue holds, and much more than the link carries meanwhile.
			wire := make([]byte, 64*1000)
			for range 1500 {
				s.Add(wire, 1000, 0)
				s.Flush(from, flood)
			}
			const datagrams = 300
			s.Stats = Stats{}
			got := 0
			for range datagrams {
				s.Add(wire, 1000, 0)
				s.Flush(from, flood)
				got += comes()
			}
			if s.Stats != (Stats{}) {
				t.Errorf("beside a slow link: %+v", s.Stats)
			}
			nettest.Until(t, 10*time.Second, "the last datagram", func() bool {
				got += len(r.drain(t, to))
				return got == datagrams
			})
		})
	}
}

// drain receives the datagrams that wait at a socket.
func (r *Receiver) drain(t *testing.T, u *UDP) (all [][]byte) {
	t.Helper()
	for {
		messages, err := r.Receive(u)
		if errors.Is(err, unix.EAGAIN) {
			return all
		}
		errtest.Must(t, err)
		for _, m := range messages {
			for ; len(m.Data) > 0; m.Data = m.Data[min(m.Size, len(m.Data)):] {
				all = append(all, bytes.Clone(m.Data[:min(m.Size, len(m.Data))]))
			}
		}
	}
}

// A datagram above the limit of UDP is counted and has no other effect.
func TestTooLargeDatagramIsCounted(t *testing.T) {
	v4, _, port := opened(t)
	ep := &Endpoint{Addr: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)}
	for _, size := range []int{MaxDatagram + 1, 1 << 16, 1 << 17} {
		var s Sender
		if !s.Add(make([]byte, size), size, 0) {
			t.Fatal("no room")
		}
		if n := s.Flush(v4, ep); n != 0 || s.Stats != (Stats{TooLarge: 1}) {
			t.Errorf("%d bytes: %d sent, %+v, want one counted as too large", size, n, s.Stats)
		}
	}

	var s Sender
	s.Add(make([]byte, MaxDatagram), MaxDatagram, 0)
	if n := s.Flush(v4, ep); n != 1 {
		t.Errorf("%d bytes: %d sent: %+v", MaxDatagram, n, s.Stats)
	}
}

// A kernel that refuses segmented datagrams to one endpoint gets single ones. The socket continues
// with segmented ones to others.
func TestRefusedSegmentsAreSentSingly(t *testing.T) {
	v4, _, port := opened(t)
	v4.segment.Store(true)
	ep := &Endpoint{Addr: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)}
	r := receiver(t)
	for _, refuse := range []bool{true, false} {
		// Without a checksum the kernel segments nothing: EINVAL (udp_send_skb, net/ipv4/udp.c).
		errtest.Must(t, unix.SetsockoptInt(v4.FD, unix.SOL_SOCKET, unix.SO_NO_CHECK, bit(refuse)))
		var s Sender
		s.Add(make([]byte, 4000), 1000, 0)
		if n := s.Flush(v4, ep); n != 4 || s.SegmentsRefused != refuse || s.Stats != (Stats{}) {
			t.Errorf("refused %v: %d sent, %v: %+v", refuse, n, s.SegmentsRefused, s.Stats)
		}
		if n := len(r.drain(t, v4)); n != 4 {
			t.Errorf("%d datagrams came, want 4", n)
		}
		if segment, _ := v4.Offloads(); !segment {
			t.Error("the socket segments nothing any more")
		}
	}
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}
