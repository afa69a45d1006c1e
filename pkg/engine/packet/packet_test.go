package packet

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// make builds a packet with right checksums.
type spec struct {
	v6, udp       bool
	src, dst      uint8
	sport         uint16
	seq, ack      uint32
	flags         uint8
	id            uint16
	payload       []byte
	options       []byte
	tos, ttl      uint8
	clearDF, none bool
}

func (s spec) build() []byte {
	ip, th := minIP4, lenUDP
	if s.v6 {
		ip = lenIP6
	}
	if !s.udp {
		th = minTCP + len(s.options)
	}

	p := make([]byte, ip+th+len(s.payload))
	proto := uint8(protoTCP)
	if s.udp {
		proto = protoUDP
	}

	be := binary.BigEndian
	ttl := s.ttl
	if ttl == 0 {
		ttl = 64
	}

	if s.v6 {
		p[0], p[1] = 0x60|s.tos>>4, s.tos<<4
		be.PutUint16(p[4:], uint16(len(p)-lenIP6))
		p[6], p[7], p[8], p[23], p[24], p[39] = proto, ttl, 0xfd, s.src, 0xfd, s.dst
	} else {
		p[0], p[1] = 0x45, s.tos
		be.PutUint16(p[2:], uint16(len(p)))
		be.PutUint16(p[4:], s.id)
		if !s.clearDF {
			p[6] = 0x40
		}
		p[8], p[9], p[12], p[15], p[16], p[19] = ttl, proto, 10, s.src, 10, s.dst
		be.PutUint16(p[10:], ^fold(sum(p[:20], 0)))
	}

	t := p[ip:]
	be.PutUint16(t, s.sport)
	be.PutUint16(t[2:], 80)
	at := udpChecksumAt
	if s.udp {
		be.PutUint16(t[4:], uint16(len(t)))
	} else {
		at = tcpChecksumAt
		be.PutUint32(t[4:], s.seq)
		be.PutUint32(t[8:], s.ack)
		t[12], t[13] = uint8(th/4)<<4, s.flags|flagACK
		be.PutUint16(t[14:], 500)
		copy(t[20:], s.options)
	}

	copy(t[th:], s.payload)
	if !s.none {
		c := ^fold(sum(t, pseudo(p, s.v6, proto, len(t))))
		if c == 0 {
			c = 0xffff
		}
		be.PutUint16(t[at:], c)
	}

	return p
}

func payload(n int, seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// naiveSum implements RFC 1071 in its plain form.
func naiveSum(b []byte, acc uint64) uint16 {
	for i := 0; i < len(b); i += 2 {
		w := uint64(b[i]) << 8
		if i+1 < len(b) {
			w |= uint64(b[i+1])
		}
		acc += w
	}
	for acc > 0xffff {
		acc = acc>>16 + acc&0xffff
	}
	return uint16(acc)
}

func TestSumAgreesWithThePlainForm(t *testing.T) {
	for n := range 300 {
		b := payload(n, uint64(n))
		if got, want := fold(sum(b, 77)), naiveSum(b, 77); got != want {
			t.Fatalf("%d bytes: %#x, want %#x", n, got, want)
		}
	}
	ones := bytes.Repeat([]byte{0xff}, 65535)
	if got, want := fold(sum(ones, 1<<63)), naiveSum(ones, 1<<63); got != want {
		t.Errorf("all ones: %#x, want %#x", got, want)
	}
}

func checksumsRight(t *testing.T, p []byte) {
	t.Helper()
	v6 := p[0]>>4 == 6
	ip, proto := lenIP6, p[6]
	if !v6 {
		ip, proto = int(p[0]&15)*4, p[9]
		if c := fold(sum(p[:ip], 0)); c != 0xffff {
			t.Errorf("IPv4 header sums to %#x", c)
		}
	}
	if c := fold(sum(p[ip:], pseudo(p, v6, proto, len(p)-ip))); c != 0xffff {
		t.Errorf("transport sums to %#x", c)
	}
}

// superOf returns the superpacket that a kernel would deliver for the packet.
func superOf(p []byte, size int) (Header, []byte) {
	p = slices.Clone(p)
	v6 := p[0]>>4 == 6
	h := Header{Flags: NeedsChecksum, SegmentSize: uint16(size), ChecksumStart: minIP4,
		ChecksumAt: udpChecksumAt, GSO: GSOUDP}
	proto := p[9]
	if v6 {
		h.ChecksumStart, proto = lenIP6, p[6]
	}
	if proto == protoTCP {
		h.GSO, h.ChecksumAt = GSOTCP4, tcpChecksumAt
		if v6 {
			h.GSO = GSOTCP6
		}
	}
	// The kernel that forwards sets hdr_len to the length of the first fragment.
	h.HeaderLen = uint16(min(len(p), 1000))
	t := p[h.ChecksumStart:]
	binary.BigEndian.PutUint16(t[h.ChecksumAt:], fold(pseudo(p, v6, proto, len(t))))
	return h, p
}

func TestSplitAndCoalesceAreInverse(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, udp := range []bool{false, true} {
			for _, n := range []int{1401, 2800, 28001, 64000} {
				t.Run(fmt.Sprintf("v6 %v udp %v %d", v6, udp, n), func(t *testing.T) {
					whole := spec{v6: v6, udp: udp, src: 1, dst: 2, sport: 7, seq: 0xfffffff0,
						flags: flagPSH, payload: payload(n, 3)}.build()
					h, p := superOf(whole, 1400)
					s, reason := Parse(h, p)
					if reason != None || s.Segments != (n+1399)/1400 {
						t.Fatalf("parse: %v, %d segments", reason, s.Segments)
					}

					var out [][]byte
					c := NewCoalescer(func(_ uint32, parts [][]byte) bool {
						out = append(out, bytes.Join(parts, nil))
						return true
					})

					for i := range s.Segments {
						seg := make([]byte, s.SegmentLen(i))
						s.Segment(i, seg)
						checksumsRight(t, seg)
						if _, _, r := Trim(seg); r != None {
							t.Fatalf("segment %d: %v", i, r)
						}
						c.Add(seg)
					}

					c.Flush()
					if len(out) != 1 {
						t.Fatalf("%d packets were written, want 1 superpacket", len(out))
					}

					got := ReadHeader(out[0])
					if got.GSO != h.GSO || got.SegmentSize != 1400 ||
						got.ChecksumStart != h.ChecksumStart || got.ChecksumAt != h.ChecksumAt {
						t.Errorf("vnet header %+v, want as %+v", got, h)
					}

					if !bytes.Equal(out[0][HeaderSize:], p) {
						t.Error("the superpacket is not the one that was split")
					}
				})
			}
		}
	}
}

func TestUDPChecksumIsNeverZero(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		p := spec{v6: v6, udp: true, src: 1, dst: 2, sport: 7, payload: make([]byte, 4)}.build()
		ip := minIP4
		if v6 {
			ip = lenIP6
		}

		// The payload that makes the sum come out as 0.
		binary.BigEndian.PutUint16(p[ip+8:], binary.BigEndian.Uint16(p[ip+6:]))
		h, _ := superOf(p, 0)
		h.GSO = GSONone
		t6 := p[ip:]
		binary.BigEndian.PutUint16(t6[6:], fold(pseudo(p, v6, protoUDP, len(t6))))
		s, reason := Parse(h, p)
		if reason != None {
			t.Fatal(reason)
		}

		out := make([]byte, s.SegmentLen(0))
		s.Segment(0, out)
		if c := binary.BigEndian.Uint16(out[ip+6:]); c != 0xffff {
			t.Errorf("v6 %v: checksum %#x, want 0xffff", v6, c)
		}

		if v6 {
			out[ip+6], out[ip+7] = 0, 0
			mendUDP(out, true)
			if c := binary.BigEndian.Uint16(out[ip+6:]); c != 0xffff {
				t.Errorf("a finished sum of 0 became %#x, want 0xffff", c)
			}
		}
	}
}

func TestMalformedSuperpacketsHaveAReason(t *testing.T) {
	whole := spec{src: 1, dst: 2, sport: 7, payload: payload(5000, 1)}.build()
	good, p := superOf(whole, 1000)

	for _, tc := range []struct {
		name   string
		change func(h *Header, p []byte) []byte
		want   Reason
	}{
		{"as it is", func(h *Header, p []byte) []byte { return p }, None},
		{"empty", func(h *Header, p []byte) []byte { return nil }, TooShort},
		{"version 5", func(h *Header, p []byte) []byte { p[0] = 0x55; return p }, BadVersion},
		{"IPv4 header of 16 bytes", func(h *Header, p []byte) []byte { p[0] = 0x44; return p },
			BadHeaderLength},
		{"TCP over IPv6 in IPv4", func(h *Header, p []byte) []byte { h.GSO = GSOTCP6; return p },
			BadGSO},
		{"unknown kind", func(h *Header, p []byte) []byte { h.GSO = 3; return p }, BadGSO},
		{"kind with the ECN bit", func(h *Header, p []byte) []byte { h.GSO |= 0x80; return p },
			BadGSO},
		{"another protocol", func(h *Header, p []byte) []byte { p[9] = 1; return p }, BadGSO},
		{"no checksum wanted", func(h *Header, p []byte) []byte { h.Flags = 0; return p },
			BadChecksumOffset},
		{"checksum elsewhere", func(h *Header, p []byte) []byte { h.ChecksumAt = 3; return p },
			BadChecksumOffset},
		{"transport header elsewhere", func(h *Header,
			p []byte) []byte {
			h.ChecksumStart = 24
			return p
		}, BadHeaderLength},
		{"segments of 0 bytes", func(h *Header, p []byte) []byte { h.SegmentSize = 0; return p },
			BadSegmentSize},
		{"5,000 segments", func(h *Header, p []byte) []byte { h.SegmentSize = 8; return p },
			TooManySegments},
		{"TCP header of 8 bytes", func(h *Header, p []byte) []byte { p[32] = 0x20; return p },
			BadHeaderLength},
		{"TCP header beyond the end", func(h *Header,
			p []byte) []byte {
			p[32] = 0xf0
			return p[:60]
		}, TooShort},
		{"cut in the TCP header", func(h *Header, p []byte) []byte { return p[:30] }, TooShort},
		{"partial checksum beyond the end", func(h *Header, p []byte) []byte {
			h.GSO = 0
			h.ChecksumStart = 60000
			return p
		}, BadChecksumOffset},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h, b := good, slices.Clone(p)
			b = tc.change(&h, b)
			if _, r := Parse(h, b); r != tc.want {
				t.Errorf("reason %v, want %v", r, tc.want)
			}
		})
	}
}

func TestTrim(t *testing.T) {
	v4 := spec{src: 1, dst: 2, payload: payload(10, 1)}.build()
	v6 := spec{v6: true, src: 1, dst: 2, payload: payload(10, 1)}.build()
	padded := func(p []byte) []byte { return append(slices.Clone(p), make([]byte, 6)...) }
	cut := func(p []byte, n int) []byte { return slices.Clone(p[:n]) }

	with := func(p []byte, at int, b byte) []byte { p = slices.Clone(p); p[at] = b; return p }
	for _, tc := range []struct {
		name string
		in   []byte
		n    int
		want Reason
	}{
		{"IPv4 with padding", padded(v4), len(v4), None},
		{"IPv6 with padding", padded(v6), len(v6), None},
		{"IPv4 cut", cut(v4, 30), 0, BadTotalLength},
		{"IPv6 cut", cut(v6, 50), 0, BadTotalLength},
		{"IPv6 shorter than its header", cut(v6, 39), 0, TooShort},
		{"IPv4 shorter than its header", cut(v4, 19), 0, TooShort},
		{"total length within the header", with(with(v4, 2, 0), 3, 19), 0, BadHeaderLength},
		{"header length of 16", with(v4, 0, 0x44), 0, BadHeaderLength},
		{"version 0", with(v4, 0, 0), 0, BadVersion},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, _, r := Trim(tc.in)
			if r != tc.want || len(p) != tc.n {
				t.Errorf("%d bytes, %v, want %d, %v", len(p), r, tc.n, tc.want)
			}
		})
	}
}

func TestCongestionMark(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for ecn := range uint8(4) {
			p := spec{v6: v6, src: 1, dst: 2, tos: 0xb8 | ecn}.build()
			Congested(p)
			want := ecn
			if ecn == 1 || ecn == 2 {
				want = 3
			}
			if ECN(p) != want {
				t.Errorf("v6 %v: mark %d became %d, want %d", v6, ecn, ECN(p), want)
			}
			checksumsRight(t, p)
		}
	}
}

// The packets of each flow come out in their order and with their payload, for any input. The code
// that the other test compares splits the superpackets.
func TestCoalescingKeepsEveryPacketAndTheOrderOfFlows(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 9))
		next := map[int]uint32{}
		want := map[string][][]byte{}
		got := map[string][][]byte{}
		flowOf := func(p []byte) string {
			if p[0]>>4 == 6 {
				return string(p[6:7]) + string(p[8:44])
			}
			return string(p[9:10]) + string(p[12:24])
		}

		refuse := seed%5 == 0
		c := NewCoalescer(func(_ uint32, parts [][]byte) bool {
			b := bytes.Join(parts, nil)
			h := ReadHeader(b)
			if refuse && h.GSO != GSONone {
				return false
			}
			s, reason := Parse(h, b[HeaderSize:])
			if reason != None {
				t.Fatalf("seed %d: wrote a packet that is malformed: %v", seed, reason)
			}
			for i := range s.Segments {
				seg := make([]byte, s.SegmentLen(i))
				s.Segment(i, seg)
				got[flowOf(seg)] = append(got[flowOf(seg)], seg)
			}
			return true
		})

		for range 200 {
			f := r.IntN(24)
			size := 100
			if r.IntN(6) == 0 {
				size = r.IntN(120)
			}

			s := spec{v6: f%2 == 0, udp: f%3 == 0, src: uint8(f), dst: 2, sport: uint16(f),
				seq: next[f], payload: payload(size, uint64(r.Uint32()))}
			if r.IntN(20) == 0 {
				s.ttl = 63
			}
			if r.IntN(20) == 0 {
				s.flags = 1 << r.IntN(8)
			}
			if r.IntN(30) == 0 {
				s.seq += 5
			}
			if r.IntN(20) == 0 {
				s.tos = 2
			}

			if r.IntN(20) == 0 {
				s.options = []byte{1, 1, 1, 1}
			}
			if r.IntN(30) == 0 {
				s.none = s.udp
			}

			next[f] = s.seq + uint32(size)
			p := s.build()
			want[flowOf(p)] = append(want[flowOf(p)], slices.Clone(p))
			c.Add(p)
			if r.IntN(60) == 0 {
				c.Flush()
			}
		}

		c.Flush()
		for k, w := range want {
			g := got[k]
			if len(g) != len(w) {
				t.Fatalf("seed %d: %d packets of a flow came out, want %d", seed, len(g), len(w))
			}
			for i := range w {
				// IDs of packets with DF have no meaning and are counted up.
				if w[i][0]>>4 == 4 {
					copy(g[i][4:6], w[i][4:6])
					copy(g[i][10:12], w[i][10:12])
				}
				if !bytes.Equal(g[i], w[i]) {
					t.Fatalf("seed %d: packet %d of a flow\n%x, want\n%x", seed, i, g[i], w[i])
				}
			}
		}
	}
}

func TestSplitAndCoalesceDoNotAllocate(t *testing.T) {
	h, p := superOf(spec{src: 1, dst: 2, sport: 7, payload: payload(60000, 1)}.build(), 1400)
	c := NewCoalescer(func(uint32, [][]byte) bool { return true })
	out := make([]byte, 64<<10*2)
	if n := testing.AllocsPerRun(20, func() {
		s, _ := Parse(h, p)
		at := 0
		for i := range s.Segments {
			l := s.SegmentLen(i)
			s.Segment(i, out[at:at+l])
			c.Add(out[at : at+l])
			at += l
		}
		c.Flush()
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

func FuzzParse(f *testing.F) {
	for _, v6 := range []bool{false, true} {
		for _, udp := range []bool{false, true} {
			h, p := superOf(spec{v6: v6, udp: udp, src: 1, dst: 2,
				payload: payload(500, 1)}.build(), 100)
			b := make([]byte, HeaderSize)
			h.Write(b)
			f.Add(append(b, p...))
		}
	}

	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) < HeaderSize {
			return
		}
		s, reason := Parse(ReadHeader(in), guarded(t, in[HeaderSize:]))
		if reason != None {
			return
		}
		for i := range s.Segments {
			if i > 0 && i < s.Segments-1 {
				continue
			}
			s.Segment(i, guarded(t, make([]byte, s.SegmentLen(i))))
		}
		s.Destination()
		s.ECN()
	})
}

func FuzzCoalesce(f *testing.F) {
	f.Add(spec{src: 1, dst: 2, payload: payload(30, 1)}.build(),
		spec{src: 1, dst: 2, seq: 30, payload: payload(30, 1)}.build())
	f.Add(spec{v6: true, udp: true, src: 1, dst: 2, payload: payload(30, 1)}.build(),
		spec{v6: true, udp: true, src: 1, dst: 2, payload: payload(30, 1)}.build())
	f.Fuzz(func(t *testing.T, a, b []byte) {
		wrote := 0
		c := NewCoalescer(func(_ uint32, parts [][]byte) bool { wrote++; return false })
		added := 0
		for _, p := range [][]byte{a, b, a} {
			if p, _, r := Trim(guarded(t, p)); r == None {
				Congested(p)
				c.Add(p)
				added++
			}
		}
		c.Flush()
		if wrote < added {
			t.Errorf("%d packets were written of %d", wrote, added)
		}
	})
}
