package pathmtu

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

// socketID names a socket. There is one per tunnel device and address family.
type socketID struct {
	device string
	v6     bool
}

// socket probes and answers on one tunnel device.
type socket struct {
	conn  *net.UDPConn
	index int // ifindex of the device when the socket was opened
}

// openSocket opens the socket of a device, with the node's address as source. The socket has the
// mark PodMark, because only TablePod has routes to node addresses through the tunnel, and because
// a packet with that mark cannot leave by another way.
func openSocket(ctx context.Context, device string, source netip.Addr,
	port uint16) (*socket, error) {
	index := 0
	lc := net.ListenConfig{Control: func(network, _ string, c syscall.RawConn) error {
		var err error
		e := c.Control(func(fd uintptr) {
			// The index is read before the socket is bound to the device. If the device is replaced
			// in between, alive notices it.
			if index, err = linkIndex(int(fd), device); err == nil {
				err = setOptions(int(fd), network, device)
			}
		})
		return errors.Join(e, err)
	}}
	network := "udp4"
	if source.Is6() {
		network = "udp6"
	}
	c, err := lc.ListenPacket(ctx, network, netip.AddrPortFrom(source, port).String())
	if err != nil {
		return nil, fmt.Errorf("open probe socket on %s: %w", device, err)
	}
	return &socket{c.(*net.UDPConn), index}, nil
}

func setOptions(fd int, network, device string) error {
	level, option, value := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE
	if network == "udp6" {
		level, option, value = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE
	}
	return errors.Join(
		setting("SO_BINDTODEVICE", unix.BindToDevice(fd, device)),
		setting("SO_MARK", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK,
			int(abi.PodMark))),
		setting("MTU_DISCOVER", unix.SetsockoptInt(fd, level, option, value)),
	)
}

func setting(what string, err error) error {
	if err != nil {
		return fmt.Errorf("set %s: %w", what, err)
	}
	return nil
}

// alive reports whether the device is still the one that the socket was opened on.
func (s *socket) alive(device string) bool {
	raw, err := s.conn.SyscallConn()
	if err != nil {
		return false
	}
	index := 0
	e := raw.Control(func(fd uintptr) { index, err = linkIndex(int(fd), device) })
	return e == nil && err == nil && index == s.index
}

// linkIndex returns the index of a link, like if_nametoindex(3). net.InterfaceByName would be
// slower, because it reads all links of the node, which may have hundreds.
func linkIndex(fd int, name string) (int, error) {
	ifr, err := unix.NewIfreq(name)
	if err == nil {
		err = unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, ifr)
	}
	if err != nil {
		return 0, fmt.Errorf("find link %s: %w", name, err)
	}
	return int(ifr.Uint32()), nil
}

// maxSegmented is the largest payload of one segmented datagram, bytes.
const maxSegmented = 65507 - 40

// segmented returns the control message (cmsg(3)) that makes the kernel send a payload as datagrams
// of size bytes.
func segmented(size int) []byte {
	b := make([]byte, unix.CmsgSpace(2))
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
	h.Level, h.Type = unix.IPPROTO_UDP, unix.UDP_SEGMENT
	h.SetLen(unix.CmsgLen(2))
	binary.NativeEndian.PutUint16(b[unix.CmsgLen(0):], uint16(size))
	return b
}
