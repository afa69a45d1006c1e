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
		if peer, err = unix.Getpeername(int(fd)); err != nil {
			return
		}
		switch a := peer.(type) {
		case *unix.SockaddrInet4:
			r.Peer = netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)).String()
		case *unix.SockaddrInet6:
			r.Peer = netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port)).String()
		}
	})
	return r, errors.Join(controlErr, err)
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
