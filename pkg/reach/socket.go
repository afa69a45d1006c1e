package reach

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/sysctl"
)

// Types of ICMP messages (RFC 792, RFC 4443), and the length of an echo.
const (
	echo4, answer4 = 8, 0
	echo6, answer6 = 128, 129
	echoLen        = 8
)

// groupRange are the groups whose processes may send echoes without CAP_NET_RAW, which veild does
// not have (icmp(7)). The kernel's default has no group.
const groupRange, noGroup, rootGroup = "ipv4/ping_group_range", "1 0", "0 0"

// openSocket opens a socket for ICMP echoes that is bound to a device and to this node's address.
// The kernel chooses the identifier of its echoes, and delivers only their answers. If no group may
// open such a socket, the group of root may from then on.
func openSocket(device string, source netip.Addr) (*net.UDPConn, error) {
	c, err := openEcho(device, source)
	if !errors.Is(err, unix.EACCES) {
		return c, err
	}
	groups, readErr := sysctl.Read(groupRange)
	if readErr != nil || strings.Join(strings.Fields(groups), " ") != noGroup {
		return nil, errors.Join(fmt.Errorf("%w: include the group 0 in net.ipv4.ping_group_range "+
			"(it is %q)", err, groups), readErr)
	}
	if err := sysctl.Write(groupRange, rootGroup); err != nil {
		return nil, fmt.Errorf("allow echoes to root: %w", err)
	}
	return openEcho(device, source)
}

func openEcho(device string, source netip.Addr) (*net.UDPConn, error) {
	domain, proto := unix.AF_INET6, unix.IPPROTO_ICMPV6
	var local unix.Sockaddr = &unix.SockaddrInet6{Addr: source.As16()}
	if source.Is4() {
		domain, proto = unix.AF_INET, unix.IPPROTO_ICMP
		local = &unix.SockaddrInet4{Addr: source.As4()}
	}

	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, proto)
	if err != nil {
		return nil, fmt.Errorf("open echo socket: %w", err)
	}
	f := os.NewFile(uintptr(fd), "echo")
	defer f.Close()
	// With the mark, only TablePod has routes to node addresses, through tunnels. A packet with it
	// cannot leave by another way.
	if err := errors.Join(unix.BindToDevice(fd, device),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(abi.PodMark)),
		unix.Bind(fd, local)); err != nil {
		return nil, fmt.Errorf("bind echo socket to %s: %w", device, err)
	}
	c, err := net.FilePacketConn(f)
	if err != nil {
		return nil, fmt.Errorf("use echo socket: %w", err)
	}
	return c.(*net.UDPConn), nil
}

// echo returns an echo with a number. The kernel fills in the identifier and the checksum.
func echo(six bool, seq uint16) []byte {
	b := make([]byte, echoLen)
	if b[0] = echo4; six {
		b[0] = echo6
	}
	binary.BigEndian.PutUint16(b[6:], seq)
	return b
}

// parse returns the number of the echo that a message answers. ok is false for other messages.
func parse(six bool, b []byte) (seq uint16, ok bool) {
	want := byte(answer4)
	if six {
		want = answer6
	}
	if len(b) < echoLen || b[0] != want {
		return 0, false
	}
	return binary.BigEndian.Uint16(b[6:]), true
}
