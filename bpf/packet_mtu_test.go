package bpf

import (
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// TestPacketsOfANarrowPath checks that an external client learns the path MTU of the tunnel to the
// backend, although it does not know the backend's address.
func TestPacketsOfANarrowPath(t *testing.T) {
	const narrow = 1300
	l := newLab(t)
	l.pods(t)
	l.serve(t, labService{name: "two", nodePort: 30090, pods: []string{"2"}})
	h := l.node1.Handle()
	tunnel, err := h.LinkByName("veil0")
	if err == nil {
		err = h.LinkSetMTU(tunnel, narrow)
	}
	errtest.Must(t, err)

	for _, f := range labAddrs {
		t.Run(f.name, func(t *testing.T) {
			six := netip.MustParseAddr(f.node).Is6()
			level, discover, do, mtu := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO,
				unix.IP_MTU
			if six {
				level, discover, do, mtu = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER,
					unix.IPV6_PMTUDISC_DO, unix.IPV6_MTU
			}

			var conn *net.UDPConn
			l.client.Run(t, func() (err error) {
				conn, err = net.DialUDP(network("udp", f.node), nil,
					net.UDPAddrFromAddrPort(at(f.node, 30091)))
				return err
			})
			defer conn.Close()
			raw, err := conn.SyscallConn()
			errtest.Must(t, err)

			raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, discover, do) })
			errtest.Must(t, err)

			nettest.Until(t, wirePatience, "the client knows the path", func() bool {
				conn.Write(make([]byte, narrow+60)) // EMSGSIZE once the MTU is known
				known := 0
				raw.Control(func(fd uintptr) {
					known, err = unix.GetsockoptInt(int(fd), level, mtu)
				})
				return err == nil && known == narrow
			})
		})
	}
}
