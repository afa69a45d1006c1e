package sock

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Endpoint holds the address of a peer and the local address from which to send to it. It is
// immutable.
type Endpoint struct {
	// Addr is the peer's address. It is never an IPv4-mapped IPv6 address.
	Addr netip.AddrPort
	// Scope is the interface index of a link-local Addr, otherwise 0.
	Scope uint32
	// Source is the local address to which the peer sends. If it is invalid, the kernel chooses the
	// source address.
	Source netip.Addr
	// Interface is the index of the link on which the peer's last datagram arrived; 0 means
	// unknown. Datagrams do not have to leave through it, because the kernel's routes decide; see
	// Paths.
	Interface int32
}

// UDP is a socket of one address family.
type UDP struct {
	FD int
	V6 bool
	// segment and gro report whether the socket has the offload.
	segment atomic.Bool
	gro     bool
}

// Offloads reports which offloads the socket uses.
func (u *UDP) Offloads() (segment, gro bool) { return u.segment.Load(), u.gro }

// Adopt returns the socket with descriptor fd, which another process opened by Open. segment and
// gro are the offloads that the other process used.
func Adopt(fd int, v6, segment, gro bool) *UDP {
	u := &UDP{FD: fd, V6: v6, gro: gro}
	u.segment.Store(segment)
	return u
}

// Sizes of a socket's buffers, bytes. The kernel doubles them to allow for its overhead.
const (
	// receiveBuffer holds the packets of a fast flow while a handover stops the threads.
	receiveBuffer = 16 << 20
	// sendBuffer is larger than the queues of the links, so that it is never full. All peers share
	// it: if packets for a slow link filled it, no packet could be sent to another peer. With this
	// size, the queueing discipline of each link decides what is dropped, as it does for the
	// kernel's WireGuard, which has no such buffer.
	sendBuffer = 128 << 20
)

// Open opens a socket of each address family on the same port. Port 0 means that the kernel chooses
// the port. v6 is nil if the kernel has no IPv6. actual is the port.
//
// The sockets do not have SO_REUSEPORT. With it, any process of the same user could also bind the
// port, without a capability, and would receive some of the datagrams.
func Open(port uint16, mark uint32) (v4, v6 *UDP, actual uint16, err error) {
	for range 100 {
		v4, actual, err = open(false, port, mark)
		if err != nil {
			return nil, nil, 0, err
		}
		v4.offload()
		v6, _, err = open(true, actual, mark)
		if err == nil {
			v6.offload()
		}
		if err == nil || errors.Is(err, unix.EAFNOSUPPORT) {
			return v4, v6, actual, nil
		}
		v4.Close()
		// Another process may use the chosen port for IPv6. If so, try another port.
		if port != 0 || !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	return nil, nil, 0, err
}

func open(v6 bool, port uint16, mark uint32) (*UDP, uint16, error) {
	family, name := unix.AF_INET, "udp4"
	if v6 {
		family, name = unix.AF_INET6, "udp6"
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, 0, fmt.Errorf("open %s socket: %w", name, err)
	}

	u := &UDP{FD: fd, V6: v6}
	if err := u.prepare(mark); err != nil {
		unix.Close(fd)
		return nil, 0, fmt.Errorf("prepare %s socket: %w", name, err)
	}

	var sa unix.Sockaddr = &unix.SockaddrInet4{Port: int(port)}
	if v6 {
		sa = &unix.SockaddrInet6{Port: int(port)}
	}

	if err := unix.Bind(fd, sa); err != nil {
		unix.Close(fd)
		return nil, 0, fmt.Errorf("bind %s socket to port %d: %w", name, port, err)
	}

	got, err := unix.Getsockname(fd)
	if err != nil {
		unix.Close(fd)
		return nil, 0, fmt.Errorf("name of %s socket: %w", name, err)
	}

	switch a := got.(type) {
	case *unix.SockaddrInet4:
		port = uint16(a.Port)
	case *unix.SockaddrInet6:
		port = uint16(a.Port)
	}

	return u, port, nil
}

func (u *UDP) prepare(mark uint32) error {
	type option struct{ level, name, value int }
	must := []option{{unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE},
		{unix.IPPROTO_IP, unix.IP_PKTINFO, 1}, {unix.IPPROTO_IP, unix.IP_RECVTOS, 1}}
	if u.V6 {
		must = []option{{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1},
			{unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE},
			{unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1},
			{unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1}}
	}

	if mark != 0 {
		must = append(must, option{unix.SOL_SOCKET, unix.SO_MARK, int(mark)})
	}

	for _, o := range must {
		if err := unix.SetsockoptInt(u.FD, o.level, o.name, o.value); err != nil {
			return fmt.Errorf("set option %d of level %d: %w", o.name, o.level, err)
		}
	}

	// Without CAP_NET_ADMIN this fails, and the buffers keep the machine's default sizes.
	_ = unix.SetsockoptInt(u.FD, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer)
	_ = unix.SetsockoptInt(u.FD, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, sendBuffer)

	return nil
}

// offload switches on the offloads that the kernel has and that passed the probe.
func (u *UDP) offload() {
	proven := proven(u.V6)
	_, err := unix.GetsockoptInt(u.FD, unix.IPPROTO_UDP, unix.UDP_SEGMENT)
	u.segment.Store(err == nil && proven.segment)
	u.gro = proven.gro && groUsable() &&
		unix.SetsockoptInt(u.FD, unix.IPPROTO_UDP, unix.UDP_GRO, 1) == nil
}

// groUsable reports whether the kernel is 5.12 or newer. UDP_GRO of older kernels does not work.
func groUsable() bool {
	var name unix.Utsname
	if unix.Uname(&name) != nil {
		return false
	}
	var major, minor int
	if n, _ := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &major,
		&minor); n != 2 {
		return false
	}
	return major > 5 || major == 5 && minor >= 12
}

// SetMark sets the mark of the packets that the socket sends.
func (u *UDP) SetMark(mark uint32) error {
	if err := unix.SetsockoptInt(u.FD, unix.SOL_SOCKET, unix.SO_MARK, int(mark)); err != nil {
		return fmt.Errorf("set mark: %w", err)
	}
	return nil
}

// Close closes the socket. A nil socket is allowed.
func (u *UDP) Close() {
	if u != nil {
		unix.Close(u.FD)
	}
}
