package link

import (
	"bytes"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service/servicetest"
)

// askSmall sends small datagrams to a server of tellSource until one is answered. The kernel adds
// the local route of an IPv6 address some time after the address (addrconf_dad_work in
// net/ipv6/addrconf.c), longer on a busy machine. A datagram that comes earlier is lost.
func askSmall(t *testing.T, ns *nettest.NS, to string) {
	t.Helper()
	nettest.Until(t, servicetest.Patience, "an answer of "+to, func() (answered bool) {
		ns.Run(t, func() error {
			c, err := net.Dial("udp", to)
			if err != nil {
				return err
			}
			defer c.Close()
			if err := c.SetDeadline(time.Now().Add(servicetest.Patience / 10)); err != nil {
				return err
			}
			if _, err := c.Write([]byte("?")); err != nil {
				return err
			}
			_, err = c.Read(make([]byte, 64))
			answered = err == nil
			return nil
		})
		return answered
	})
}

// askLarge sends a datagram larger than the MTU to a server of tellSource and expects it back. It
// checks the source that the server sees.
func askLarge(t *testing.T, ns *nettest.NS, to, want string) {
	t.Helper()
	askSmall(t, ns, to)
	ns.Run(t, func() error {
		c, err := net.Dial("udp", to)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(servicetest.Patience)); err != nil {
			return err
		}

		sent := bytes.Repeat([]byte("large"), 800)
		if _, err := c.Write(sent); err != nil {
			return err
		}
		buf := make([]byte, 1<<16)
		n, err := c.Read(buf)
		if err != nil {
			return fmt.Errorf("datagram to %s: %w", to, err)
		}
		source, body, _ := bytes.Cut(buf[:n], []byte("\n"))
		if !strings.HasPrefix(string(source), want) || !bytes.Equal(body, sent) {
			return fmt.Errorf("%s sees %s and returns %d bytes, want %s and %d", to, source,
				len(body), want, len(sent))
		}
		return nil
	})
}

// TestLargeDatagramsGoThroughServices sends datagrams beyond the MTU from outside to NodePorts and
// LoadBalancer IPs, and from one pod of the node to another. Their replies are as large. A backend
// here sees the client, and one on another node sees this node.
func TestLargeDatagramsGoThroughServices(t *testing.T) {
	bothHooks(t, func(t *testing.T, withTCX bool) {
		t.Run("NodePorts", func(t *testing.T) {
			l := newLinked(t, withTCX)
			l.addFar(t)
			l.serveHereAndFar(t)
			l.attach(t)
			for to, want := range map[string]string{
				"198.19.0.1:30053": "198.19.0.9:", "[fd42:9::1]:30053": "[fd42:9::9]:",
				"198.19.0.1:31053": "198.18.1.1:", "[fd42:9::1]:31053": "[fd42:1::1]:",
			} {
				askLarge(t, l.client, to, want)
			}
		})

		for _, hostRouting := range []bool{false, true} {
			t.Run(fmt.Sprintf("LoadBalancer IPs, host routing %t", hostRouting),
				func(t *testing.T) {
					r := newRouted(t, withTCX, hostRouting)
					for i, want := range []string{"198.19.0.9:", "[fd42:9::9]:"} {
						askLarge(t, r.client, net.JoinHostPort(outsideAt[i], "53"), want)
					}

					for i, want := range []string{"198.18.1.5:", "[fd42:1::5]:"} {
						askLarge(t, r.pod, net.JoinHostPort(otherAt[i], "5353"), want)
					}
				})
		}
	})
}
