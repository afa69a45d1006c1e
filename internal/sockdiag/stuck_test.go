package sockdiag

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nl"
)

// When a host loses its address, a connection that waits for an answer from it is stuck. An idle
// connection is not.
func TestStuckSocketsAreThoseThatWait(t *testing.T) {
	for name, addrs := range map[string][]netip.Prefix{
		"ipv4": nettest.Prefixes("192.0.2.1/24", "192.0.2.2/24"),
		"ipv6": nettest.Prefixes("2001:db8::1/64", "2001:db8::2/64"),
	} {
		t.Run(name, func(t *testing.T) {
			here, there := nettest.NewNS(t), nettest.NewNS(t)
			nettest.Veth(t, nettest.End{NS: here, Name: "eth0", Addrs: addrs[:1]},
				nettest.End{NS: there, Name: "eth0", Addrs: addrs[1:]})
			l := listenIn(t, there, netip.AddrPortFrom(addrs[1].Addr(), 0))
			to := l.Addr().(*net.TCPAddr).AddrPort()
			dialIn(t, here, to) // stays idle
			busy := dialIn(t, here, to)

			there.OnLink("eth0", func(h *nl.Handle, link nl.Link) error {
				return h.AddrDel(link, &nl.Addr{IPNet: &net.IPNet{IP: addrs[1].Addr().AsSlice(),
					Mask: net.CIDRMask(addrs[1].Bits(), addrs[1].Addr().BitLen())}})
			})
			if _, err := busy.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			connecting := connectIn(t, here, to)

			closed := 0
			nettest.Until(t, 20*time.Second, "two stuck sockets", func() bool {
				closed += closeIn(t, here, to, Socket.Stuck)
				return closed == 2
			})
			if err := socketError(t, connecting); err != unix.ECONNABORTED {
				t.Errorf("the connecting socket: %v, want %v", err, unix.ECONNABORTED)
			}
			if n := closeIn(t, here, to, nil); n != 1 {
				t.Errorf("%d sockets are left, want the idle one", n)
			}
		})
	}
}

// If a program has many sockets, a search reads only a limited number of them.
func TestSearchesReadSoManySockets(t *testing.T) {
	nettest.NeedRoot(t)
	ns := nettest.NewNS(t)
	ns.OnLink("lo", func(h *nl.Handle, l nl.Link) error { return h.LinkSetUp(l) })
	to := listenIn(t, ns, netip.MustParseAddrPort("127.0.0.1:0")).Addr().(*net.TCPAddr).AddrPort()
	for range 3 {
		dialIn(t, ns, to)
	}

	for most, want := range map[int]int{1: 1, 2: 2, mostRead: 3} {
		asked := 0
		ns.Run(t, func() error {
			_, err := choose(unix.AF_INET,
				query{protocol: unix.IPPROTO_TCP, remotes: []netip.AddrPort{to}},
				func(Socket) bool { asked++; return false }, most)
			return err
		})
		if asked != want {
			t.Errorf("%d of 3 sockets are read, want %d of at most %d", asked, want, most)
		}
	}
}

// The kernel selects by remote, regardless of the position of a remote among others.
func TestFilterSelectsRemotes(t *testing.T) {
	nettest.NeedRoot(t)
	ns := nettest.NewNS(t)
	ns.OnLink("lo", func(h *nl.Handle, l nl.Link) error { return h.LinkSetUp(l) })
	var all []netip.AddrPort
	for _, text := range []string{"127.0.0.1:0", "[::1]:0", "127.0.0.2:0", "[::1]:0", "127.0.0.1:0"} {
		l := listenIn(t, ns, netip.MustParseAddrPort(text))
		to := l.Addr().(*net.TCPAddr).AddrPort()
		all = append(all, to)
		dialIn(t, ns, to)
	}
	l := listenIn(t, ns, netip.MustParseAddrPort("127.0.0.3:0"))
	mapped := l.Addr().(*net.TCPAddr).AddrPort()
	ns.Run(t, func() error {
		c, err := connect(true, mapped)
		if err == nil {
			t.Cleanup(func() { c.Close() })
		}
		return err
	})
	all = append(all, mapped)

	for from := range all {
		for to := from + 1; to <= len(all); to++ {
			want := all[from:to]
			got := map[netip.AddrPort]int{}
			ns.Run(t, func() error {
				for _, f := range families(want) {
					q := query{protocol: unix.IPPROTO_TCP, remotes: want}
					err := list(f, q, func(_ [sizeofID]byte, s Socket) bool {
						got[s.Remote]++
						return true
					})
					if err != nil {
						return err
					}
				}
				return nil
			})
			for _, remote := range want {
				if got[remote] != 1 {
					t.Errorf("filter %v found %v", want, got)
				}
			}
			if len(got) != len(want) {
				t.Errorf("filter %v found %v", want, got)
			}
		}
	}
}

// The kernel accepts a filter with the largest number of remotes.
func TestFilterOfManyRemotes(t *testing.T) {
	nettest.NeedRoot(t)
	many := make([]netip.AddrPort, 2*mostRemotes)
	for i := range many {
		many[i] = netip.AddrPortFrom(netip.MustParseAddr("2001:db8::1"), uint16(i+1))
	}
	err := list(unix.AF_INET6, query{protocol: unix.IPPROTO_TCP, remotes: many},
		func([sizeofID]byte, Socket) bool { return true })
	if err != nil && !errors.Is(err, ErrNotSupported) {
		t.Error(err)
	}
}

func listenIn(t *testing.T, ns *nettest.NS, at netip.AddrPort) net.Listener {
	t.Helper()
	var l net.Listener
	ns.Run(t, func() (err error) {
		l, err = net.Listen("tcp", at.String())
		return err
	})
	t.Cleanup(func() { l.Close() })
	return l
}

func dialIn(t *testing.T, ns *nettest.NS, to netip.AddrPort) net.Conn {
	t.Helper()
	var c net.Conn
	ns.Run(t, func() (err error) {
		c, err = connect(false, to)
		return err
	})
	t.Cleanup(func() { c.Close() })
	return c
}

// connectIn begins to connect and returns the socket.
func connectIn(t *testing.T, ns *nettest.NS, to netip.AddrPort) (fd int) {
	t.Helper()
	family, addr := unix.AF_INET, unix.Sockaddr(nil)
	if to.Addr().Is6() {
		family, addr = unix.AF_INET6, &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	} else {
		addr = &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	ns.Run(t, func() (err error) {
		fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		if err := unix.Connect(fd, addr); err != unix.EINPROGRESS {
			return err
		}
		return nil
	})
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func closeIn(t *testing.T, ns *nettest.NS, to netip.AddrPort, lost func(Socket) bool) (n int) {
	t.Helper()
	err := ns.Do(func() (err error) {
		n, err = Close(unix.IPPROTO_TCP, to, lost)
		return err
	})
	if errors.Is(err, ErrNotSupported) {
		nettest.Skip(t, nettest.NoKernelFeature, err.Error())
	}
	errtest.Must(t, err)
	return n
}

func socketError(t *testing.T, fd int) unix.Errno {
	t.Helper()
	code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	errtest.Must(t, err)
	return unix.Errno(code)
}
