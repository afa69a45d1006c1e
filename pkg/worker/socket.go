package worker

import (
	"fmt"
	"syscall"
	_ "unsafe" // for go:linkname

	"golang.org/x/sys/unix"
	_ "golang.zx2c4.com/wireguard/conn" // owns controlFns
)

// controlFns are run by the library on each UDP socket that it makes, before the
// socket is bound. It offers no other way to set an option before a packet can
// leave; a wrapped conn.Bind would set it afterwards, and would also lose the
// library's following of route changes, which it does for its own Bind only.
// A test looks at the sockets, so that a renamed variable does not go unseen.
//
//go:linkname controlFns golang.zx2c4.com/wireguard/conn.controlFns
var controlFns []func(network, address string, c syscall.RawConn) error

func init() { controlFns = append(controlFns, neverFragment) }

// neverFragment sets DF on outgoing packets and makes the socket ignore path MTUs from ICMP (ip(7),
// IP_PMTUDISC_PROBE). A packet too large for the interface is an error; one too large for the path
// is lost, and pkg/pathmtu notices.
func neverFragment(network, address string, c syscall.RawConn) error {
	level, option, value := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE
	if network == "udp6" {
		level, option, value = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE
	}
	var err error
	if e := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), level, option, value)
	}); e != nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("forbid fragments on %s socket %s: %w", network, address, err)
	}
	return nil
}
