package pathmtu

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/config"
)

// socketID names a socket: one a tunnel device and address family.
type socketID struct {
	device string
	v6     bool
}

// socket probes and answers on one tunnel device.
type socket struct {
	conn  *net.UDPConn
	index int // of the device when it was opened
}

// openSocket opens the socket of a device, with the node's address as source.
// It carries PodMark: the routes to node addresses through the tunnel are in
// TablePod only, and nothing so marked can leave by another way.
func openSocket(ctx context.Context, device string, source netip.Addr, port uint16) (*socket, error) {
	link, err := net.InterfaceByName(device)
	if err != nil {
		return nil, fmt.Errorf("find probe device: %w", err)
	}
	lc := net.ListenConfig{Control: func(network, _ string, c syscall.RawConn) error {
		var err error
		if e := c.Control(func(fd uintptr) { err = setOptions(int(fd), network, device) }); e != nil {
			return e
		}
		return err
	}}
	network := "udp4"
	if source.Is6() {
		network = "udp6"
	}
	c, err := lc.ListenPacket(ctx, network, netip.AddrPortFrom(source, port).String())
	if err != nil {
		return nil, fmt.Errorf("open probe socket on %s: %w", device, err)
	}
	return &socket{c.(*net.UDPConn), link.Index}, nil
}

func setOptions(fd int, network, device string) error {
	level, option, value := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE
	if network == "udp6" {
		level, option, value = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE
	}
	return errors.Join(
		setting("SO_BINDTODEVICE", unix.BindToDevice(fd, device)),
		setting("SO_MARK", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(config.PodMark))),
		setting("MTU_DISCOVER", unix.SetsockoptInt(fd, level, option, value)),
	)
}

func setting(what string, err error) error {
	if err != nil {
		return fmt.Errorf("set %s: %w", what, err)
	}
	return nil
}

// alive is whether the device is still the one that the socket was opened on.
func (s *socket) alive(device string) bool {
	link, err := net.InterfaceByName(device)
	return err == nil && link.Index == s.index
}
