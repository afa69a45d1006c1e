package bpfmaps

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/service/servicetest"
)

// peerOf returns the peer of a connection as the kernel returns it now.
func peerOf(c net.Conn) (r result, err error) {
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return r, err
	}
	controlErr := raw.Control(func(fd uintptr) {
		var peer unix.Sockaddr
		if peer, err = unix.Getpeername(int(fd)); err == nil {
			r.Peer = addrPortOf(peer).String()
		}
	})
	return r, errors.Join(controlErr, err)
}

// addrPortOf returns the address and port of a, and sockaddrOf the opposite.
func addrPortOf(a unix.Sockaddr) netip.AddrPort {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
	}
	return netip.AddrPort{}
}

func sockaddrOf(a netip.AddrPort) (family int, _ unix.Sockaddr) {
	if a.Addr().Is4() {
		return unix.AF_INET, &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return unix.AF_INET6, &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// connectOn sends by a UDP socket that is connected to the first service. Once the answer waits at
// the socket, it connects to the other services. It returns the source of the answer.
func connectOn(services []string) (r result, err error) {
	family, first := sockaddrOf(netip.MustParseAddrPort(services[0]))
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return r, err
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, first); err != nil {
		return r, err
	}
	if err := unix.Send(fd, []byte("?"), 0); err != nil {
		return r, err
	}
	waiting := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if _, err := unix.Poll(waiting, int(servicetest.Patience.Milliseconds())); err != nil {
		return r, err
	}

	for _, to := range services[1:] {
		_, at := sockaddrOf(netip.MustParseAddrPort(to))
		if err := unix.Connect(fd, at); err != nil {
			return r, err
		}
	}
	_, from, err := unix.Recvfrom(fd, make([]byte, 64), unix.MSG_DONTWAIT)
	if err != nil {
		return r, err
	}
	return result{Peer: addrPortOf(from).String()}, nil
}

// manySockets connects one UDP socket after the other to an address and closes it.
func manySockets(to string, count int) error {
	for range count {
		c, err := net.Dial("udp", to)
		if err != nil {
			return err
		}
		c.Close()
	}
	return nil
}

// sendMany sends datagrams by one unconnected socket. Nobody answers.
func sendMany(to string, count int) error {
	c, err := dial(order{Net: loose, To: to})
	if err != nil {
		return err
	}
	defer c.Close()
	for range count {
		if _, err := c.Write([]byte("?")); err != nil {
			return err
		}
	}
	return nil
}

// sendToAll sends by one socket to several services at the same time, in rounds. Each service must
// answer from its own address, and always by the same backend.
func sendToAll(services []string, rounds int) error {
	c, err := net.ListenUDP("udp", nil)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(servicetest.Patience)); err != nil {
		return err
	}

	answers := map[netip.AddrPort]string{}
	for range rounds {
		var sending sync.WaitGroup
		errs := make([]error, len(services))
		for i, to := range services {
			sending.Go(func() {
				at, err := netip.ParseAddrPort(to)
				if err == nil {
					_, err = c.WriteToUDPAddrPort([]byte("?"), at)
				}
				errs[i] = err
			})
		}
		sending.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}

		for range services {
			buf := make([]byte, 64)
			n, from, err := c.ReadFromUDPAddrPort(buf)
			if err != nil {
				return err
			}
			from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
			answer := string(buf[:n])
			if !slices.Contains(services, from.String()) {
				return fmt.Errorf("a reply comes from %s", from)
			}
			if was := answers[from]; was != "" && was != answer {
				return fmt.Errorf("%s was answered by %s and then by %s", from, was, answer)
			}
			answers[from] = answer
		}
	}
	return nil
}
