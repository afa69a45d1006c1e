package guard

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/guard/chains"
)

// Pods and other nodes do not reach programs on the node's loopback, with a route to them or
// without.
func TestLoopbackOfTheNodeIsItsOwn(t *testing.T) {
	n := newLeaving(t)
	var c *net.UDPConn
	n.Run(t, func() (err error) {
		// the port of ipPacket
		c, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 12345})
		return err
	})
	defer c.Close()
	arrives := func(within time.Duration) bool {
		errtest.Must(t, c.SetReadDeadline(time.Now().Add(within)))
		_, _, err := c.ReadFromUDPAddrPort(make([]byte, 64))
		return err == nil
	}

	for link, from := range map[string]struct {
		ns   *nettest.NS
		addr string
	}{"p0": {n.pod, "198.18.5.5"}, "t0": {n.far, "198.19.9.2"}} {
		t.Run(link, func(t *testing.T) {
			nettest.Sysctl(t, n.NS, "ipv4/conf/"+link+"/route_localnet", "1")
			out := packetSocket(t, from.ns, link, unix.SOCK_RAW)
			frame := ether(summed(ipPacket(from.addr, "127.0.0.1", 1)), unix.ETH_P_IP)
			n.Run(t, func() error {
				l, err := net.InterfaceByName(link)
				if err == nil {
					copy(frame, l.HardwareAddr)
				}
				return err
			})

			send := func() {
				t.Helper()
				errtest.Must(t, errtest.Of(unix.Write(out, frame)))
			}
			before := n.counters(t)[chains.ToLoopback]
			send()
			nettest.Until(t, patience, "a packet to loopback is counted",
				func() bool { return n.counters(t)[chains.ToLoopback] > before })
			if arrives(100 * time.Millisecond) {
				t.Error("it arrived all the same")
			}

			// The control: without the rule it arrives.
			n.Run(t, func() error {
				return runNFT("flush chain inet " + abi.NFTGuardTable + " prerouting")
			})
			send()
			if !arrives(patience) {
				t.Error("a packet does not arrive without the rule either: the case shows nothing")
			}

			n.apply(t)
		})
	}
}
