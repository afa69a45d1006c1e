package table_test

import (
	"net"
	"net/netip"
	"time"

	"github.com/kubeveil/kubeveil/internal/nettest"
)

// patience is how long a connection that a policy forbids is waited for.
const patience = 300 * time.Millisecond

// dial connects to a port without a listener: a reset shows that the packet arrived.
func dial(from *nettest.NS, to netip.Addr) error { return dialPort(from, to, 80) }

func dialPort(from *nettest.NS, to netip.Addr, port uint16) error {
	return from.Do(func() error {
		c, err := net.DialTimeout("tcp", netip.AddrPortFrom(to, port).String(), patience)
		if err == nil {
			c.Close()
		}
		return err
	})
}

// udp sends a datagram to a closed port and reads: the kernel tells of an ICMP error.
func udp(from *nettest.NS, to netip.Addr) (answer string, err error) {
	err = from.Do(func() error {
		c, err := net.Dial("udp", netip.AddrPortFrom(to, 80).String())
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		if _, err := c.Write([]byte("x")); err != nil {
			return err
		}
		b := make([]byte, 64)
		n, err := c.Read(b)
		answer = string(b[:n])
		return err
	})
	return answer, err
}
