package sock

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
)

// opened returns the sockets of both families, and their port.
func opened(t *testing.T) (v4, v6 *UDP, port uint16) {
	t.Helper()
	v4, v6, port, err := Open(0, 0)
	errtest.Must(t, err)
	t.Cleanup(func() { v4.Close(); v6.Close() })
	return v4, v6, port
}

func receiver(t *testing.T) *Receiver {
	t.Helper()
	r, err := NewReceiver()
	errtest.Must(t, err)
	t.Cleanup(func() { r.Close() })
	return r
}

// Datagrams of a run arrive whole, in order and with their marks, over both families, with and
// without segmentation by the kernel.
func TestRunsArriveWhole(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, segment := range []bool{false, true} {
			name := map[bool]string{false: "ipv4", true: "ipv6"}[v6] +
				map[bool]string{false: " singly", true: " segmented"}[segment]
			t.Run(name, func(t *testing.T) {
				a4, a6, _ := opened(t)
				b4, b6, port := opened(t)
				from, to, addr := a4, b4, netip.MustParseAddr("127.0.0.1")
				if v6 {
					from, to, addr = a6, b6, netip.IPv6Loopback()
				}
				if from == nil {
					t.Fatal("the kernel has no IPv6")
				}

				from.segment.Store(segment)
				var s Sender
				var want [][]byte

				wire := make([]byte, 0, 100*1000)
				for i := range 100 {
					d := bytes.Repeat([]byte{byte(i + 1)}, 1000)
					if i == 99 {
						d = d[:10]
					}
					want = append(want, d)
					wire = append(wire, d...)
				}

				if !s.Add(wire, 1000, 2) || !s.Add(wire[:7], 7, 0) {
					t.Fatal("no room")
				}

				want = append(want, wire[:7])
				ep := &Endpoint{Addr: netip.AddrPortFrom(addr, port), Source: addr}
				if n := s.Flush(from, ep); n != 101 || s.Stats != (Stats{}) {
					t.Fatalf("%d datagrams were sent, want 101: %+v", n, s.Stats)
				}

				r := receiver(t)

				var got [][]byte
				for end := time.Now().Add(5 * time.Second); len(got) < len(want) &&
					time.Now().Before(end); {
					msgs, err := r.Receive(to)
					if errors.Is(err, unix.EAGAIN) {
						time.Sleep(time.Millisecond)
						continue
					}

					errtest.Must(t, err)

					for _, m := range msgs {
						if m.From.Addr.Addr() != addr || m.From.Source != addr {
							t.Fatalf("from %+v, want address and source %s", m.From, addr)
						}
						for len(m.Data) > 0 {
							n := min(m.Size, len(m.Data))
							if mark := uint8(2); n >= 10 && m.ECN != mark {
								t.Fatalf("congestion mark %d, want %d", m.ECN, mark)
							}
							got = append(got, bytes.Clone(m.Data[:n]))
							m.Data = m.Data[n:]
						}
					}
				}

				if len(got) != len(want) {
					t.Fatalf("%d datagrams arrived, want %d", len(got), len(want))
				}

				for i := range want {
					if !bytes.Equal(got[i], want[i]) {
						t.Fatalf("datagram %d has %d bytes of %d, want %d of %d", i, len(got[i]),
							got[i][0], len(want[i]), want[i][0])
					}
				}
			})
		}
	}
}

func TestSourceThatIsGoneIsReplaced(t *testing.T) {
	v4, _, port := opened(t)
	var s Sender
	s.Add([]byte("hello"), 5, 0)
	ep := &Endpoint{Addr: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port),
		Source: netip.MustParseAddr("203.0.113.77")}
	if n := s.Flush(v4, ep); n != 1 || !s.SourceLost {
		t.Errorf("%d datagrams, source lost %v, want 1 and true: %+v", n, s.SourceLost, s.Stats)
	}
}

func TestSocketsForbidFragments(t *testing.T) {
	v4, v6, _ := opened(t)
	if n, err := unix.GetsockoptInt(v4.FD, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER); err != nil ||
		n != unix.IP_PMTUDISC_PROBE {
		t.Errorf("IPv4: %d, %v", n, err)
	}
	if n, err := unix.GetsockoptInt(v6.FD, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER); err != nil ||
		n != unix.IPV6_PMTUDISC_PROBE {
		t.Errorf("IPv6: %d, %v", n, err)
	}
}

func TestPortInUseIsAnError(t *testing.T) {
	_, _, port := opened(t)
	if _, _, _, err := Open(port, 0); err == nil {
		t.Error("the port was opened twice")
	}
}

func TestSendingDoesNotAllocate(t *testing.T) {
	v4, _, port := opened(t)
	s := new(Sender)
	r := receiver(t)
	wire := make([]byte, 30000)
	ep := &Endpoint{Addr: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)}
	if n := testing.AllocsPerRun(50, func() {
		s.Add(wire, 1000, 0)
		s.Flush(v4, ep)
		if _, err := r.Receive(v4); err != nil && !errors.Is(err, unix.EAGAIN) {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

func FuzzParseControl(f *testing.F) {
	c := control{b: make([]byte, 128)}
	c.packetInfo(true, netip.MustParseAddr("127.0.0.1"), 1)
	c.add(unix.IPPROTO_UDP, unix.UDP_GRO, 4)
	f.Add(c.b[:c.n])
	f.Fuzz(func(t *testing.T, in []byte) {
		// The kernel aligns ancillary data, and so must a test.
		b := make([]byte, (len(in)+7)/8*8)
		copy(b, in)
		var m Message
		parseControl(b[:len(in)], &m)
	})
}

// A socket whose buffer takes only a part of the datagrams keeps their order, and the rest is
// counted.
func TestWhatTheBufferDoesNotTakeIsCounted(t *testing.T) {
	v4, _, port := opened(t)
	errtest.Must(t, unix.SetsockoptInt(v4.FD, unix.SOL_SOCKET, unix.SO_SNDBUF, 4096))

	for _, segment := range []bool{false, true} {
		v4.segment.Store(segment)
		var s Sender
		wire := make([]byte, 300*500)
		for i := range 300 {
			binary.BigEndian.PutUint16(wire[i*500:], uint16(i))
		}
		if !s.Add(wire, 500, 0) {
			t.Fatal("no room")
		}
		n := s.Flush(v4, &Endpoint{Addr: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)})
		r := receiver(t)

		got, last := 0, -1
		for {
			msgs, err := r.Receive(v4)
			if err != nil {
				break
			}
			for _, m := range msgs {
				for ; len(m.Data) > 0; m.Data = m.Data[min(m.Size, len(m.Data)):] {
					number := int(binary.BigEndian.Uint16(m.Data))
					if number <= last {
						t.Fatalf("datagram %d comes after %d", number, last)
					}
					got, last = got+1, number
				}
			}
		}
		if got == 0 || n != got || s.Stats != (Stats{Full: uint64(300 - n)}) {
			t.Errorf("segmented %v: %d were sent and %d came of 300: %+v", segment, n, got, s.Stats)
		}
	}
}
