package packet

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// written is a Coalescer and what it wrote.
type written struct {
	*Coalescer
	out [][]byte // packets with their vnet headers
}

func newWritten() *written {
	w := new(written)
	w.Coalescer = NewCoalescer(func(_ uint32, parts [][]byte) bool {
		w.out = append(w.out, bytes.Join(parts, nil))
		return true
	})
	return w
}

// segment returns packet i of a flow, of TCP or UDP.
func segment(v6, udp bool, flow, i int) []byte {
	return spec{v6: v6, udp: udp, src: 1, dst: 2, sport: uint16(flow), seq: uint32(i * 100),
		id: uint16(i), payload: bytes.Repeat([]byte{byte(i + 1)}, 100)}.build()
}

// Packets of flows that take turns are coalesced, for any number of flows in a batch.
func TestFlowsThatTakeTurnsCoalesce(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, udp := range []bool{false, true} {
			for _, flows := range []int{1, 16, 17, 64, 256} {
				t.Run(fmt.Sprintf("ipv6 %v, udp %v, %d flows", v6, udp, flows), func(t *testing.T) {
					w := newWritten()
					for i := range 2 {
						for f := range flows {
							w.Add(segment(v6, udp, f, i))
						}
					}
					w.Flush()
					if len(w.out) != flows {
						t.Errorf("%d flows of two packets were written as %d", flows, len(w.out))
					}
				})
			}
		}
	}
}

// If there are more packets than a batch can hold, all are written.
func TestBatchThatIsFullLosesNothing(t *testing.T) {
	for _, flows := range []int{1, 3, maxPackets, maxPackets + 1, 3 * maxPackets} {
		w := newWritten()
		for f := range flows {
			for i := range 3 * maxPackets / flows {
				w.Add(segment(false, false, f, i))
			}
		}
		w.Flush()

		got := 0
		for _, b := range w.out {
			s, bad := Parse(ReadHeader(b), b[HeaderSize:])
			if bad != None {
				t.Fatal(bad)
			}
			got += s.Segments
		}
		if want := 3 * maxPackets / flows * flows; got != want {
			t.Errorf("%d flows: %d packets were written, want %d", flows, got, want)
		}
	}
}

// A packet that is neither TCP nor UDP is written after the flows between its addresses. Other
// flows stay open for further packets.
func TestOtherProtocolFlushesItsAddressesOnly(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("ipv6 %v", v6), func(t *testing.T) {
			w := newWritten()
			w.Add(segment(v6, false, 1, 0))
			other := spec{v6: v6, src: 3, dst: 2, sport: 1, payload: make([]byte, 100)}
			w.Add(other.build())
			ping := segment(v6, false, 0, 0)
			if v6 {
				ping[6] = 58
			} else {
				ping[9] = 1
			}
			w.Add(ping)
			if len(w.out) != 2 || !bytes.Equal(w.out[0][HeaderSize:], segment(v6, false, 1, 0)) ||
				!bytes.Equal(w.out[1][HeaderSize:], ping) {
				t.Fatalf("%d packets were written, want the flow of its addresses and then it",
					len(w.out))
			}

			other.seq = 100
			w.Add(other.build())
			w.Add(segment(v6, false, 1, 1))
			w.Flush()
			if len(w.out) != 4 {
				t.Errorf("%d packets were written, want 4: the other flow stayed open", len(w.out))
			}
		})
	}
}

// splits returns the packets that a kernel makes of the written ones.
func (w *written) splits(t *testing.T) (out [][]byte) {
	t.Helper()
	for _, b := range w.out {
		s, bad := Parse(ReadHeader(b), b[HeaderSize:])
		if bad != None {
			t.Fatal(bad)
		}
		for i := range s.Segments {
			p := make([]byte, s.SegmentLen(i))
			s.Segment(i, p)
			out = append(out, p)
		}
	}
	return out
}

// Two segments that differ in any bit of their headers come out unchanged.
func TestNoHeaderBitIsLost(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, udp := range []bool{false, true} {
			t.Run(fmt.Sprintf("ipv6 %v, udp %v", v6, udp), func(t *testing.T) {
				head := len(segment(v6, udp, 1, 0)) - 100
				for bit := range head * 8 {
					if !v6 && bit/16 == 2 {
						continue // The ID means nothing beside DF (RFC 6864, section 4.1).
					}
					for changed := range 2 {
						in := [][]byte{segment(v6, udp, 1, 0), segment(v6, udp, 1, 1)}
						in[changed][bit/8] ^= 1 << (bit % 8)
						if p, _, bad := Trim(in[changed]); bad != None || len(p) != len(in[changed]) {
							continue
						}
						mend(in[changed], v6, udp)
						w := newWritten()
						for _, p := range in {
							w.Add(slices.Clone(p))
						}
						w.Flush()

						for i, p := range w.splits(t) {
							if !bytes.Equal(p, in[i]) {
								t.Fatalf("bit %d of byte %d of packet %d: packet %d is\n%x, want\n%x",
									bit%8, bit/8, changed, i, p, in[i])
							}
						}
					}
				}
			})
		}
	}
}

// mend sets the checksums of a packet whose headers were changed, if they are in their places.
func mend(p []byte, v6, udp bool) {
	ip, at, proto := minIP4, tcpChecksumAt, uint8(protoTCP)
	if v6 {
		ip = lenIP6
	} else {
		p[10], p[11] = 0, 0
		binary.BigEndian.PutUint16(p[10:], ^fold(sum(p[:min(len(p), int(p[0]&15)*4)], 0)))
	}
	if udp {
		at, proto = udpChecksumAt, protoUDP
	}
	t := p[ip:]
	t[at], t[at+1] = 0, 0
	binary.BigEndian.PutUint16(t[at:], ^fold(sum(t, pseudo(p, v6, proto, len(t)))))
}

// The order of each flow is kept among packets of all kinds, and no packet is lost.
func TestOrderOfFlowsIsKept(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		w := newWritten()
		next := map[uint16]int{}
		for range 1500 {
			f := r.IntN(40)
			p := segment(f%2 == 0, f%4 < 2, f, next[uint16(f)])
			next[uint16(f)]++
			w.Add(p)
		}
		w.Flush()

		seen := map[uint16]int{}
		for _, p := range w.splits(t) {
			ip := minIP4
			if p[0]>>4 == 6 {
				ip = lenIP6
			}
			f := binary.BigEndian.Uint16(p[ip:])
			if want := byte(seen[f] + 1); p[len(p)-1] != want {
				t.Fatalf("flow %d: packet %d comes in place of %d", f, p[len(p)-1], want)
			}
			seen[f]++
		}
		for f, n := range next {
			if seen[f] != n {
				t.Fatalf("flow %d: %d of %d packets were written", f, seen[f], n)
			}
		}
	}
}

// The cost of a packet by the number of flows that take turns.
func BenchmarkFlowsThatTakeTurns(b *testing.B) {
	for _, flows := range []int{1, 16, 17, 64, 256} {
		b.Run(fmt.Sprint(flows), func(b *testing.B) {
			var all [][]byte
			for i := range maxPackets / flows {
				for f := range flows {
					all = append(all, segment(false, false, f, i))
				}
			}
			c := NewCoalescer(func(uint32, [][]byte) bool { return true })
			for b.Loop() {
				for _, p := range all {
					c.Add(p)
				}
				c.Flush()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(all)),
				"ns/packet")
		})
	}
}
