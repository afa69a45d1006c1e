package lab

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// sendFrame sends one Ethernet frame, its header included, on the named link.
func sendFrame(link string, frame []byte) error {
	i, err := net.InterfaceByName(link)
	if err != nil {
		return err
	}
	// Protocol 0: this socket receives nothing.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open packet socket: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: i.Index}); err != nil {
		return fmt.Errorf("send frame on %s: %w", link, err)
	}
	return nil
}
