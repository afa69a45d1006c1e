package nettest

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// SendFrames sends Ethernet frames as they are, headers included and in this order, out of a link
// of the calling thread's network namespace. The kernel itself would never send such frames.
func SendFrames(link string, frames ...[]byte) error {
	i, err := net.InterfaceByName(link)
	if err != nil {
		return fmt.Errorf("send frames on %s: %w", link, err)
	}
	// Protocol 0: this socket receives nothing.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open packet socket: %w", err)
	}
	defer unix.Close(fd)
	for n, f := range frames {
		if err := unix.Sendto(fd, f, 0, &unix.SockaddrLinklayer{Ifindex: i.Index}); err != nil {
			return fmt.Errorf("send frame %d on %s: %w", n, link, err)
		}
	}
	return nil
}
