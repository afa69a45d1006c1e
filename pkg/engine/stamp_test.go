package engine_test

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/engine/noise"
)

// If the clock was ahead and is right when the process starts again, peers still accept the node's
// handshakes, because the last timestamp is kept. Without it, they refuse them.
func TestClockThatWasAheadCutsNoPeerOff(t *testing.T) {
	a, b := newEngine(t), newEngine(t)
	a.Engine.StampsAfter(noise.Stamp(time.Now().Add(time.Hour), noise.Timestamp{}))
	// b has no endpoint, so that a begins the handshake: b then has the timestamp.
	b.Set(t, "private_key=%x\nlisten_port=0\npublic_key=%x\nallowed_ip=10.0.0.1/32\n", b.Private[:],
		a.Public[:])
	begin := func() {
		t.Helper()
		a.Set(t, "private_key=%x\nlisten_port=0\n", a.Private[:])
		listening(t, a)
		a.Set(t, "public_key=%x\nendpoint=127.0.0.1:%s\nallowed_ip=10.0.0.2/32\n", b.Public[:],
			listening(t, b))
	}
	begin()
	p := datagram(false, true, []byte("hello"))
	passesOnce(t, a, b, p)
	settle(t, a, b)
	kept := a.Engine.LastStamp()

	restart := func(kept noise.Timestamp) {
		t.Helper()
		a.Engine.Close()
		a.Restart(t)
		a.Engine.StampsAfter(kept)
		begin()
	}
	restart(noise.Timestamp{})
	nettest.Until(t, 10*time.Second, "a refusal", func() bool {
		return b.Engine.Drops()["handshake_replayed"] > 0
	})
	if a.Engine.Sessions() != 0 {
		t.Fatal("a session with an old timestamp")
	}
	restart(kept)
	passesOnce(t, a, b, p)
}

// Handshakes are marked AF41, as in the kernel, and carry no ECN.
func TestHandshakesAreMarked(t *testing.T) {
	for _, tc := range []struct {
		network, ip            string
		level, option, message int
	}{
		{"udp4", "127.0.0.1", unix.IPPROTO_IP, unix.IP_RECVTOS, unix.IP_TOS},
		{"udp6", "::1", unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, unix.IPV6_TCLASS},
	} {
		t.Run(tc.network, func(t *testing.T) {
			c, err := net.ListenUDP(tc.network, &net.UDPAddr{IP: net.ParseIP(tc.ip)})
			errtest.Must(t, err)
			defer c.Close()
			raw, err := c.SyscallConn()
			errtest.Must(t, err)
			if e := raw.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), tc.level, tc.option, 1)
			}); e != nil || err != nil {
				t.Fatal(e, err)
			}

			a := newEngine(t)
			a.Set(t, "private_key=%x\nlisten_port=0\n", a.Private[:])
			listening(t, a)
			a.Set(t, "public_key=%064x\nendpoint=%s\n", 9, c.LocalAddr())
			b, oob := make([]byte, 2048), make([]byte, 256)
			_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
			n, k, _, _, err := c.ReadMsgUDP(b, oob)
			if err != nil || n != noise.InitiationSize {
				t.Fatalf("read %d bytes, %v, want an initiation", n, err)
			}
			messages, err := unix.ParseSocketControlMessage(oob[:k])
			if err != nil || len(messages) != 1 || int(messages[0].Header.Type) != tc.message {
				t.Fatalf("messages %+v, %v", messages, err)
			}
			if got := messages[0].Data[0]; got != 34<<2 { // AF41 is 34 (RFC 2597).
				t.Errorf("the field is %#x, want %#x", got, 34<<2)
			}
		})
	}
}
