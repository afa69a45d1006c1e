package guard

import (
	"errors"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

type namespace interface{ Do(func() error) error }

// udp sends a datagram from a socket with this mark, from this address if there is one.
func udp(ns namespace, from, to string, mark uint32) error {
	return ns.Do(func() error {
		local := &net.UDPAddr{IP: net.ParseIP(from)}
		if from == "" {
			local = nil
		}

		c, err := net.DialUDP("udp", local, &net.UDPAddr{IP: net.ParseIP(to), Port: 7777})
		if err != nil {
			return err
		}
		defer c.Close()
		raw, err := c.SyscallConn()
		if err != nil {
			return err
		}

		var set error
		if err := raw.Control(func(fd uintptr) {
			set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(mark))
		}); err != nil {
			return err
		}

		if set != nil {
			return set
		}

		_, err = c.Write([]byte("kubeveil"))
		return err
	})
}

// loses sends from the host and waits until the reason is counted.
func (n *node) loses(t *testing.T, situation, reason string, ns namespace, to string, mark uint32) {
	t.Helper()
	before := n.counters(t)[reason]
	// The packet is sent repeatedly. The first may be lost while duplicate address detection of the
	// neighbour is not finished.
	nettest.Until(t, patience, situation+" is counted as "+reason, func() bool {
		if err := udp(ns, "", to, mark); err != nil && !errors.Is(err, unix.EPERM) {
			t.Fatalf("%s: %v", situation, err)
		}
		return n.counters(t)[reason] > before
	})
}

// losesFrom sends a packet from the peer and waits until it is counted as dropped because its
// source is in a range.
func (n *node) losesFrom(t *testing.T, from, to string) {
	t.Helper()
	before := n.counters(t)["src_in_range"]
	errtest.Must(t, udp(n.peer, from, to, 0))
	nettest.Until(t, patience, "packet from "+from+" is counted", func() bool {
		return n.counters(t)["src_in_range"] > before
	})
}

// delivers sends from the host and waits until a socket of the peer receives the packet.
func (n *node) delivers(t *testing.T, situation, to string) {
	t.Helper()
	var c *net.UDPConn
	n.peer.Run(t, func() (err error) {
		c, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(to), Port: 7777})
		return err
	})
	defer c.Close()
	if err := udp(n, "", to, 0); err != nil {
		t.Fatalf("%s: %v", situation, err)
	}
	errtest.Must(t, c.SetReadDeadline(time.Now().Add(patience)))
	if _, _, err := c.ReadFromUDP(make([]byte, 64)); err != nil {
		t.Errorf("%s: %v", situation, err)
	}
}

// dropCapabilities removes all capabilities of the calling thread.
func dropCapabilities() error {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capset(&hdr, &data[0])
}
