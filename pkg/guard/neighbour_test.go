package guard

import (
	"bytes"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// TestUplinkIsNeverAskedForAPod sends a packet with the tunnels' mark from a host process to a pod.
// It is routed to the uplink, where the kernel must not resolve the pod's address by ARP or
// neighbour discovery, which would reveal it.
func TestUplinkIsNeverAskedForAPod(t *testing.T) {
	bothHooks(t, func(t *testing.T, hk hooks) {
		for to, pod := range map[string]string{
			"198.18.2.0/24": "198.18.2.9", "fd42:1:0:2::/64": "fd42:1:0:2::9",
		} {
			n := newNode(t, hk)
			n.Run(t, func() error { return nettest.Command("ip", "route", "add", to, "dev", "u0") })
			wire := packetSocket(t, n.peer, "u0", unix.SOCK_RAW)
			before := n.counters(t)["neighbour_in_range"]
			nettest.Until(t, patience, "the question for "+pod+" is dropped", func() bool {
				err := udp(n, "", pod, abi.TunnelMark)
				if err != nil && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EHOSTUNREACH) {
					t.Fatal(err)
				}
				return n.counters(t)["neighbour_in_range"] > before
			})
			if names(wire, addrs(pod)[0].AsSlice()) {
				t.Errorf("the network was told of %s", pod)
			}
		}
	})
}

// names reads the waiting frames and reports whether one of them contains want.
func names(fd int, want []byte) bool {
	buf := make([]byte, 1<<14)
	for {
		n, err := unix.Read(fd, buf)
		if err != nil {
			return false
		}
		if bytes.Contains(buf[:n], want) {
			return true
		}
	}
}
