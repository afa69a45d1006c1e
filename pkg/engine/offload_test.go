package engine_test

import (
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/engine/noise"
	"github.com/kubeveil/kubeveil/pkg/engine/packet"
)

// Offloads that the kernel refused, or that did not work on the path to a peer, are tried again
// after some time. No packet is lost by that.
func TestOffloadsAreTriedAgain(t *testing.T) {
	var c clock
	a, b, p := greeted(t, withClock(&c))
	settle(t, a, b)
	refuse := func(on int) {
		errtest.Must(t, unix.SetsockoptInt(a.Engine.SocketFD(), unix.SOL_SOCKET, unix.SO_NO_CHECK,
			on))
	}
	singly := func() bool { return slices.Contains(a.Engine.Offloads().Singly, noise.PublicKey(b.Public)) }

	refuse(1)
	super := datagram(false, true, make([]byte, 3000))
	h := packet.Header{Flags: packet.NeedsChecksum, GSO: packet.GSOUDP, HeaderLen: 28, SegmentSize: 1000,
		ChecksumStart: 20, ChecksumAt: 6}
	errtest.Must(t, a.SendSuper(h, super))
	for range 3 {
		if b.Receive(10*time.Second) == nil {
			t.Fatal("a segment is lost")
		}
	}
	nettest.Until(t, 10*time.Second, "the refusal", singly)
	refuse(0)

	a.Engine.RefuseSuperpackets()
	if o := a.Engine.Offloads(); o.TCP || o.UDP || !o.Segment {
		t.Errorf("offloads %+v, want segments of other peers only", o)
	}
	a.Engine.LastWalk()
	nettest.Until(t, 10*time.Second, "the offloads", func() bool {
		c.pass(time.Minute)
		o := a.Engine.Offloads()
		return o.TCP && o.UDP && o.Segment && !singly()
	})

	errtest.Must(t, a.Engine.SendSingly(b.Public))
	c.pass(59 * time.Minute)
	for walk := a.Engine.LastWalk(); a.Engine.LastWalk() == walk; {
	}
	if !singly() {
		t.Error("the peer's path is believed again within an hour")
	}
	nettest.Until(t, 10*time.Second, "segments to the peer", func() bool {
		c.pass(time.Minute)
		return !singly()
	})
	nettest.Until(t, 30*time.Second, "a packet", func() bool {
		a.Send(t, p)
		return b.Receive(200*time.Millisecond) != nil
	})
}
