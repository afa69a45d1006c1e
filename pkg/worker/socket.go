package worker

import (
	"fmt"
	"syscall"
	_ "unsafe" // for go:linkname

	"golang.org/x/sys/unix"
	_ "golang.zx2c4.com/wireguard/conn" // owns controlFns
)

// controlFns is a variable of wireguard-go. The library runs these functions on each UDP socket
// that it makes, before it binds the socket. There is no other way to set an option before a packet
// can leave. A wrapper of conn.Bind would set it later. It would also lose the tracking of route
// changes, which the library does only for its own Bind. A test inspects the sockets, so it fails
// if the library renames the variable.
//
//go:linkname controlFns golang.zx2c4.com/wireguard/conn.controlFns
var controlFns []func(network, address string, c syscall.RawConn) error

func init() { controlFns = append(controlFns, neverFragment) }

// neverFragment sets DF on outgoing packets and makes the socket ignore path MTUs from ICMP (ip(7),
// IP_PMTUDISC_PROBE). Sending a packet that is too large for the interface is an error. A packet
// that is too large for the path is lost, which pkg/pathmtu detects.
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
