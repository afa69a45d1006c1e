package engine_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/engine"
	"github.com/kubeveil/kubeveil/pkg/engine/enginetest"
	"github.com/kubeveil/kubeveil/pkg/engine/packet"
)

// datagram builds a UDP packet from one inner address to another, .1 to .2 if out.
func datagram(v6, out bool, payload []byte) []byte {
	from, to := byte(1), byte(2)
	if !out {
		from, to = 2, 1
	}

	be := binary.BigEndian
	if v6 {
		p := make([]byte, 48+len(payload))
		p[0], p[6], p[7] = 0x60, 17, 64
		be.PutUint16(p[4:], uint16(8+len(payload)))
		p[8], p[23], p[24], p[39] = 0xfd, from, 0xfd, to
		be.PutUint16(p[40:], 1000)
		be.PutUint16(p[42:], 2000)
		be.PutUint16(p[44:], uint16(8+len(payload)))
		copy(p[48:], payload)
		be.PutUint16(p[46:], checksum(p[40:], p[8:40], 17))
		return p
	}

	p := make([]byte, 28+len(payload))
	p[0], p[6], p[8], p[9] = 0x45, 0x40, 64, 17
	be.PutUint16(p[2:], uint16(len(p)))
	p[12], p[15], p[16], p[19] = 10, from, 10, to
	be.PutUint16(p[10:], checksum(p[:20], nil, 0))
	be.PutUint16(p[20:], 1000)
	be.PutUint16(p[22:], 2000)
	be.PutUint16(p[24:], uint16(8+len(payload)))
	copy(p[28:], payload)
	be.PutUint16(p[26:], checksum(p[20:], p[12:20], 17))

	return p
}

func checksum(b, addrs []byte, proto int) uint16 {
	sum := 0
	if addrs != nil {
		sum = proto + len(b)
	}
	for _, part := range [][]byte{addrs, b} {
		for i := 0; i < len(part); i += 2 {
			w := int(part[i]) << 8
			if i+1 < len(part) {
				w |= int(part[i+1])
			}
			sum += w
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	if c := ^uint16(sum); c != 0 || proto == 0 {
		return c
	}
	return 0xffff
}

type maker func(testing.TB) *enginetest.TunDevice

func newEngine(t testing.TB) *enginetest.TunDevice { return enginetest.NewEngine(t) }

// combinations are the pairs of devices that have to work together.
var combinations = []struct {
	name string
	a, b maker
}{
	{"engine to engine", newEngine, newEngine},
	{"engine to wireguard-go", newEngine, enginetest.NewReference},
	{"engine to kernel", newEngine, enginetest.NewKernel},
	{"wireguard-go to engine", enginetest.NewReference, newEngine},
	{"kernel to engine", enginetest.NewKernel, newEngine},
}

// fromEngine are the combinations whose first device is the engine. others are the ones of them
// with a device of another implementation.
var (
	fromEngine = combinations[:3]
	others     = combinations[1:3]
)

func expect(t *testing.T, n *enginetest.TunDevice, want []byte) {
	t.Helper()
	got := n.Receive(10 * time.Second)
	if !bytes.Equal(got, want) {
		t.Fatalf("received %d bytes\n%x, want %d\n%x, drops %v", len(got), got, len(want), want,
			drops([]*enginetest.TunDevice{n}))
	}
}

// greeted returns two engines with a session, and a packet that has passed from the first to the
// second.
func greeted(t *testing.T, with ...func(*engine.DeviceConfig)) (a, b *enginetest.TunDevice,
	p []byte) {
	t.Helper()
	a, b = enginetest.NewEngine(t, with...), enginetest.NewEngine(t, with...)
	enginetest.Pair(t, a, b, false, "")
	p = datagram(false, true, []byte("hello"))
	a.Send(t, p)
	expect(t, b, p)
	return a, b, p
}

// connect waits until packets pass both ways. If both sides begin a handshake in the same moment,
// wireguard-go may have to begin again, and earlier packets are lost.
func connect(t *testing.T, a, b *enginetest.TunDevice) {
	t.Helper()
	for _, out := range []bool{true, false} {
		from, to := a, b
		if !out {
			from, to = b, a
		}
		probe := datagram(false, out, []byte("probe"))
		nettest.Until(t, 30*time.Second, "a packet", func() bool {
			from.Send(t, probe)
			return to.Receive(200*time.Millisecond) != nil
		})
	}
	for _, n := range []*enginetest.TunDevice{a, b} {
		for n.Receive(300*time.Millisecond) != nil {
		}
	}
}

func TestPacketsPassBothWays(t *testing.T) {
	for _, c := range combinations {
		for _, outer6 := range []bool{false, true} {
			for _, psk := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/outer ipv6 %v/preshared key %v", c.name, outer6, psk),
					func(t *testing.T) {
						a, b := c.a(t), c.b(t)
						extra := ""
						if psk {
							extra = "preshared_key=" + strings.Repeat("5c", 32) + "\n"
						}
						enginetest.Pair(t, a, b, outer6, extra)
						connect(t, a, b)
						for i := range 40 {
							p := datagram(i%2 == 1, true, bytes.Repeat([]byte{byte(i)}, i*35))
							a.Send(t, p)
							expect(t, b, p)
							p = datagram(i%2 == 0, false, bytes.Repeat([]byte{byte(i)}, i*7))
							b.Send(t, p)
							expect(t, a, p)
						}
					})
			}
		}
	}
}

// A superpacket leaves as segments and arrives whole, also at other implementations.
func TestSuperpacketsPass(t *testing.T) {
	for _, c := range fromEngine {
		t.Run(c.name, func(t *testing.T) {
			a, b := c.a(t), c.b(t)
			enginetest.Pair(t, a, b, false, "")
			connect(t, a, b)

			payload := make([]byte, 60000)
			for i := range payload {
				payload[i] = byte(i / 251)
			}

			p := datagram(false, true, payload)
			h := packet.Header{Flags: packet.NeedsChecksum, GSO: packet.GSOUDP, SegmentSize: 1300,
				ChecksumStart: 20, ChecksumAt: 6}
			errtest.Must(t, a.SendSuper(h, p))

			var got []byte
			for len(got) < len(payload) {
				q := b.Receive(5 * time.Second)
				if q == nil {
					t.Fatalf("%d bytes came, want %d", len(got), len(payload))
				}
				got = append(got, q[28:]...)
			}

			if !bytes.Equal(got, payload) {
				t.Error("the payload is another")
			}
		})
	}
}

func TestSourceOfAnotherPeerIsDropped(t *testing.T) {
	a, b, good := greeted(t)
	bad := datagram(false, true, []byte("bad"))
	bad[15] = 77
	a.Send(t, bad)
	a.Send(t, good)
	expect(t, b, good)
	if n := b.Engine.Drops()["wrong_source"]; n != 1 {
		t.Errorf("%d packets counted as of a wrong source, want 1: %v", n, b.Engine.Drops())
	}
}

// A datagram of any size and type is counted and has no other effect; among the sizes is one larger
// than any buffer for a packet.
func TestMalformedDatagramsAreCounted(t *testing.T) {
	a, b, p := greeted(t)
	before := b.Get(t, "endpoint")
	c, err := net.Dial("udp", "127.0.0.1:"+b.Get(t, "listen_port")[0])
	errtest.Must(t, err)
	defer c.Close()

	sent := total(b)
	for kind := range 6 {
		for _, n := range []int{1, 3, 4, 31, 32, 63, 64, 65, 91, 92, 93, 147, 148, 149, 1500, 9000,
			65507} {
			d := make([]byte, n)
			d[0] = byte(kind)
			errtest.Must(t, errtest.Of(c.Write(d)))
			sent++
		}
	}

	for end := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		if total(b) == sent {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d drops counted, want %d: %v", total(b), sent, b.Engine.Drops())
		}
	}

	a.Send(t, p)
	expect(t, b, p)
	if after := b.Get(t, "endpoint"); after[0] != before[0] {
		t.Errorf("the endpoint moved from %s to %s", before, after)
	}
}

func total(n *enginetest.TunDevice) uint64 {
	all := uint64(0)
	for _, n := range n.Engine.Drops() {
		all += n
	}
	return all
}

func TestEndpointFollowsTransportPackets(t *testing.T) {
	for _, c := range fromEngine {
		t.Run(c.name, func(t *testing.T) {
			b, a := c.a(t), c.b(t)
			enginetest.Pair(t, a, b, false, "")
			connect(t, a, b)
			p := datagram(false, true, []byte("hello"))
			a.Send(t, p)
			expect(t, b, p)
			old := b.Get(t, "endpoint")[0]
			a.Set(t, "listen_port=0\n")
			v4, err := net.ListenUDP("udp4", nil)
			errtest.Must(t, err)

			port := v4.LocalAddr().(*net.UDPAddr).Port
			v4.Close()
			a.Set(t, "listen_port=%d\n", port)
			a.Send(t, p)
			expect(t, b, p)
			want := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(port)).String()
			if now := b.Get(t, "endpoint")[0]; now != want {
				t.Errorf("endpoint %s, before %s, want %s", now, old, want)
			}

			back := datagram(false, false, []byte("back"))
			b.Send(t, back)
			expect(t, a, back)
		})
	}
}

func TestSocketsAreClosedWhileTheLinkIsDown(t *testing.T) {
	a, b, _ := greeted(t)
	port := b.Get(t, "listen_port")[0]
	b.Up.Store(false)
	addr, err := net.ResolveUDPAddr("udp4", "127.0.0.1:"+port)
	errtest.Must(t, err)

	nettest.Until(t, 5*time.Second, "the port is free while the link is down", func() bool {
		c, err := net.ListenUDP("udp4", addr)
		if err == nil {
			c.Close()
		}
		return err == nil
	})

	b.Up.Store(true)
	back := datagram(false, false, []byte("back"))
	for end := time.Now().Add(10 * time.Second); ; {
		b.Send(t, back)
		if got := a.Receive(200 * time.Millisecond); bytes.Equal(got, back) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("no packet passes after the link came back: %v %v", a.Engine.Drops(),
				b.Engine.Drops())
		}
	}

	if now := b.Get(t, "listen_port")[0]; now != port {
		t.Errorf("port %s, want %s as before", now, port)
	}
}

func TestRefusedConfigurationChangesNothing(t *testing.T) {
	a := newEngine(t)
	a.Set(t, "private_key=%x\nlisten_port=0\npublic_key=%064x\nallowed_ip=10.1.0.0/16\n",
		a.Private[:], 9)

	listening(t, a)
	var before, after bytes.Buffer
	errtest.Must(t, a.IpcGetOperation(&before))

	taken, err := net.ListenUDP("udp4", nil)
	errtest.Must(t, err)
	defer taken.Close()

	for name, in := range map[string]string{
		"a bad line at the end": fmt.Sprintf(
			"fwmark=5\nreplace_peers=true\npublic_key=%064x\nallowed_ip=10.2.0.0/16\ncolour=red\n",
			10),
		"a port in use": fmt.Sprintf("listen_port=%d\nfwmark=5\nreplace_peers=true\n",
			taken.LocalAddr().(*net.UDPAddr).Port),
	} {
		if err := a.IpcSetOperation(strings.NewReader(in)); err == nil {
			t.Errorf("%s: no error", name)
		}
		after.Reset()
		errtest.Must(t, a.IpcGetOperation(&after))
		if after.String() != before.String() {
			t.Errorf("%s: configuration before\n%s\nafter\n%s", name, &before, &after)
		}
	}
}

func TestRemovedPeerIsForgotten(t *testing.T) {
	a := newEngine(t)
	a.Set(t, "private_key=%x\nlisten_port=0\npublic_key=%064x\nallowed_ip=10.0.0.2/32\n"+
		"endpoint=127.0.0.1:9\n", a.Private[:], 9)
	// Packets that come before the device is up are dropped.
	nettest.Until(t, 10*time.Second, "packets wait for the peer that does not answer", func() bool {
		a.Send(t, datagram(false, true, make([]byte, 1000)))
		return a.Engine.StagedBytes() > 100*1000
	})
	a.Set(t, "public_key=%064x\nremove=true\n", 9)
	if n := a.Engine.StagedBytes(); n != 0 {
		t.Errorf("%d bytes are counted as staged, want 0", n)
	}
	if left := a.Get(t, "public_key"); len(left) != 0 {
		t.Errorf("peers %v, want none", left)
	}
}

func TestStagedPacketsAreBounded(t *testing.T) {
	a := newEngine(t)
	a.Set(t, "private_key=%x\nlisten_port=0\n", a.Private[:])
	for i := range 40 {
		a.Set(t, "public_key=%064x\nallowed_ip=10.0.%d.0/24\nendpoint=127.0.0.1:9\n", 9+i, i)
	}
	for i := range 40 {
		for range 200 {
			p := datagram(false, true, make([]byte, 1300))
			p[18] = byte(i)
			if err := a.SendSuper(packet.Header{}, p); errors.Is(err, unix.EAGAIN) {
				time.Sleep(time.Millisecond)
			}
		}
	}
	nettest.Until(t, 10*time.Second, "packets beyond the bound are counted", func() bool {
		return a.Engine.Drops()["staged_full"] > 0
	})
	if n := a.Engine.StagedBytes(); n == 0 || n > 4<<20 {
		t.Errorf("%d bytes are staged, want some, and at most 4 MiB", n)
	}
}

// A late response is still accepted.
func TestLateResponseIsTaken(t *testing.T) {
	a, b := newEngine(t), newEngine(t)
	enginetest.Pair(t, a, b, false, "")
	h := newHostile(t, 1)
	for i, n := range []*enginetest.TunDevice{a, b} {
		h.device[i] = netip.MustParseAddrPort("127.0.0.1:" + n.Get(t, "listen_port")[0])
	}

	// The relay delays each datagram by a second. All greetings except the last are repeated
	// earlier.
	for i := range h.conn {
		go func() {
			buf := make([]byte, 2048)
			for {
				n, _, err := h.conn[i].ReadFromUDPAddrPort(buf)
				if err != nil {
					return
				}
				p := bytes.Clone(buf[:n])
				time.AfterFunc(700*time.Millisecond, func() {
					h.mu.Lock()
					defer h.mu.Unlock()
					h.send(1-i, p)
				})
			}
		}()
	}

	c := newEngine(t)
	c.Set(t, "private_key=%x\nlisten_port=0\n", c.Private[:])
	b.Set(t, "public_key=%x\nallowed_ip=10.0.0.1/32\n", c.Public[:])
	port := netip.MustParseAddrPort("127.0.0.1:" + listening(t, c))
	h.mu.Lock()
	h.device[0] = port
	h.mu.Unlock()
	c.Set(t, "public_key=%x\nendpoint=127.0.0.1:%d\nallowed_ip=10.0.0.2/32\n", b.Public[:],
		h.port(0))
	p := datagram(false, true, []byte("late"))

	c.Send(t, p)
	if got := b.Receive(20 * time.Second); !bytes.Equal(got, p) {
		t.Fatalf("no packet came: %v, %v", c.Engine.Drops(), b.Engine.Drops())
	}
}
