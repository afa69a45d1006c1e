package nftables_test

import (
	"net"
	"net/netip"
	"time"

	"github.com/kubeveil/kubeveil/internal/nettest"
)

// patience bounds the wait for an answer that must not come. An expected answer may take longer, up
// to expectation, on an emulated or a busy machine.
const patience, expectation = 300 * time.Millisecond, 10 * time.Second

// waitFor returns how long to wait for an answer.
func waitFor(expected bool) time.Duration {
	if expected {
		return expectation
	}
	return patience
}

// dial connects to port 80. expected reports whether an answer must come: the reset of a closed
// port.
func dial(from *nettest.NS, to netip.Addr, expected bool) error {
	return dialPort(from, to, 80, expected)
}

func dialPort(from *nettest.NS, to netip.Addr, port uint16, expected bool) error {
	return from.Do(func() error {
		c, err := net.DialTimeout("tcp", netip.AddrPortFrom(to, port).String(), waitFor(expected))
		if err == nil {
			c.Close()
		}
		return err
	})
}

// udp sends a datagram to a closed port and reads: the read returns an ICMP error.
func udp(from *nettest.NS, to netip.Addr, expected bool) (answer string, err error) {
	err = from.Do(func() error {
		c, err := net.Dial("udp", netip.AddrPortFrom(to, 80).String())
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(waitFor(expected))); err != nil {
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
