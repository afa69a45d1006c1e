package link

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service/planner"
	"github.com/kubeveil/kubeveil/pkg/service/servicetest"
)

// TestNarrowPathsAreToldOutside has a client outside whose datagrams are too large for the tunnel
// to their backend. This node's ICMP error gets the mark of the packet that it is about only with a
// kernel setting. Without the mark, the guard must assume that the error quotes a pod's address.
func TestNarrowPathsAreToldOutside(t *testing.T) {
	const narrow = 1300
	bothHooks(t, func(t *testing.T, withTCX bool) {
		l := newLinked(t, withTCX)
		l.ip(t, "link set veil0 mtu 1300", "route add 198.18.2.0/24 dev veil0",
			"-6 route add fd42:1:0:2::/64 dev veil0")
		p, err := planner.New("node-1", servicetest.Limits)
		errtest.Must(t, err)

		s := servicetest.Named("far")
		s.Ports[1].NodePort = 30053
		p.SetNodeAddrs(nettest.Addrs("198.19.0.1", "fd42:9::1"))
		p.PutService(s)
		p.PutSlice(servicetest.SliceOf("far", "198.18.2.5", "fd42:1:0:2::5"))
		errtest.Must(t, l.Apply(p.Plan()))

		l.attach(t)
		for family, node := range map[string]string{"ipv4": "198.19.0.1", "ipv6": "fd42:9::1"} {
			c := dialWhole(t, l.client, netip.AddrPortFrom(netip.MustParseAddr(node), 30053))
			before := l.dropped(t)["quoted_in_error"]
			nettest.Until(t, 10*time.Second,
				family+": the guard dropped what quotes a pod's address", func() bool {
					c.send(narrow + 60)
					return l.dropped(t)["quoted_in_error"] > before
				})
			if got := c.pathMTU(t); got == narrow {
				t.Errorf("%s: the client knows the path without the setting", family)
			}
			nettest.Sysctl(t, l.host, family+"/fwmark_reflect", "1")
			nettest.Until(t, 10*time.Second, family+": the client knows the path", func() bool {
				c.send(narrow + 60) // EMSGSIZE once the MTU is known
				return c.pathMTU(t) == narrow
			})
		}
	})
}

// wholeConn is a UDP socket that sends datagrams without fragmentation.
type wholeConn struct {
	*net.UDPConn
	level, mtu int
}

func dialWhole(t *testing.T, ns *nettest.NS, to netip.AddrPort) wholeConn {
	t.Helper()
	c := wholeConn{level: unix.IPPROTO_IP, mtu: unix.IP_MTU}
	discover, do := unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO
	if to.Addr().Is6() {
		c.level, c.mtu, discover, do = unix.IPPROTO_IPV6, unix.IPV6_MTU, unix.IPV6_MTU_DISCOVER,
			unix.IPV6_PMTUDISC_DO
	}
	ns.Run(t, func() (err error) {
		c.UDPConn, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
		return err
	})
	t.Cleanup(func() { c.Close() })
	c.control(t, func(fd int) error { return unix.SetsockoptInt(fd, c.level, discover, do) })
	return c
}

// send sends n zero bytes. n may be larger than the known path MTU.
func (c wholeConn) send(n int) { _, _ = c.Write(make([]byte, n)) }

func (c wholeConn) pathMTU(t *testing.T) (mtu int) {
	t.Helper()
	c.control(t, func(fd int) (err error) {
		mtu, err = unix.GetsockoptInt(fd, c.level, c.mtu)
		return err
	})
	return mtu
}

func (c wholeConn) control(t *testing.T, fn func(fd int) error) {
	t.Helper()
	raw, err := c.SyscallConn()
	errtest.Must(t, err)
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = fn(int(fd)) }); err != nil || failed != nil {
		t.Fatal(err, failed)
	}
}
