package engine_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/engine"
	"github.com/kubeveil/kubeveil/pkg/engine/enginetest"
	"github.com/kubeveil/kubeveil/pkg/engine/sock"
)

// largestMTU is the largest MTU of a TUN in Linux, bytes.
const largestMTU = 65535

// withMTU sets the MTU of a device's TUN.
func withMTU(mtu int) func(*engine.DeviceConfig) {
	return func(o *engine.DeviceConfig) {
		o.Link = func() (sock.Link, error) { return sock.Link{Up: true, MTU: mtu}, nil }
	}
}

// A packet that does not fit a datagram is counted, also while there is no session, and packets
// that fit continue to flow.
func TestPacketAboveTheLargestDatagramIsCounted(t *testing.T) {
	// The message has 32 bytes more, and the text is padded to 16 (largest MTU) or to the MTU.
	const largest = sock.MaxDatagram - 32
	for _, v6 := range []bool{false, true} {
		for _, mtu := range []int{largestMTU, largest} {
			t.Run(fmt.Sprintf("ipv6 %v, MTU %d", v6, mtu), func(t *testing.T) {
				a, b := enginetest.NewEngine(t, withMTU(mtu)), enginetest.NewEngine(t, withMTU(mtu))
				enginetest.Pair(t, a, b, false, "")
				packet := func(n int) []byte {
					head := len(datagram(v6, true, nil))
					return datagram(v6, true, make([]byte, n-head))
				}

				fits := largest
				if mtu > largest {
					fits = largest &^ 15
				}
				sizes := []int{fits + 1, largest + 1, largestMTU}
				for _, n := range sizes {
					a.Send(t, packet(n))
				}
				a.Send(t, packet(fits))
				expect(t, b, packet(fits))
				for _, n := range sizes {
					a.Send(t, packet(n))
				}

				want := uint64(2 * len(sizes))
				nettest.Until(t, 10*time.Second, "the counters", func() bool {
					return a.Engine.Drops()["send_too_large"] == want
				})
				hello := datagram(v6, true, []byte("hello"))
				a.Send(t, hello)
				expect(t, b, hello)
			})
		}
	}
}
