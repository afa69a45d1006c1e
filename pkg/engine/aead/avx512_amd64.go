package aead

import (
	"crypto/subtle"
	"encoding/binary"
	"math/bits"
	"unsafe"

	"golang.org/x/sys/cpu"

	"github.com/kubeveil/kubeveil/internal/secret"
)

// hasAVX512 reports whether the CPU has the instructions that lanes_amd64.s uses.
var hasAVX512 = cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VL &&
	cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512IFMA

// AVX512 is the tier for CPUs with AVX-512.
var AVX512 = Tier{Name: "avx512", Seal: sealLanes, Open: openLanes}

// chachaLanes XORs n bytes at each of 8 addresses with the keystream from block 1 on, and writes
// the first 32 bytes of block 0 of each to polyKeys. counters are the nonces.
//
//go:noescape
func chachaLanes(key *byte, texts *uint64, counters *uint64, polyKeys *byte, n int)

// polyLanes adds n bytes at each of 8 addresses, padded to 16, and the block of their lengths to h.
// state is h, r and 20r as 3 limbs each, every limb 8 lanes; 20r has no first limb.
//
//go:noescape
func polyLanes(state *uint64, texts *uint64, n int)

const (
	laneCount = 8
	// leastLanes is the number of packets of one length from which on a pass with unused lanes is
	// faster than x/crypto. For packets of at most shortText bytes it is leastShort.
	leastLanes = 5
	leastShort = 2
	shortText  = 256
	// maxLaneText is the size of the text of unused lanes. x/crypto processes longer packets.
	maxLaneText = longest
)

// lanes is the secret scratch memory of the tier.
type lanes struct {
	keys     [laneCount][32]byte // Poly1305 keys: r and s
	poly     [8][laneCount]uint64
	texts    [laneCount]unsafe.Pointer
	counters [laneCount]uint64
}

// unused is the text of the lanes that have no packet. These lanes write to it too, but the result
// is never read.
type unused [maxLaneText]byte

func sealLanes(w *Worker, key *Key, packets []Packet) {
	w.groups(key, packets, sealGroup, sealEach)
}
func openLanes(w *Worker, key *Key, packets []Packet) {
	w.groups(key, packets, openGroup, openEach)
}

// groups passes runs of consecutive packets of one length to group. It passes packets to each if
// the run is too short, or the packets are too long.
func (w *Worker) groups(key *Key, packets []Packet, group, each func(*Worker, *Key, []Packet)) {
	secret.Reserve()
	for len(packets) > 0 {
		n, size := 1, len(packets[0].Data)
		for n < len(packets) && n < laneCount && len(packets[n].Data) == size {
			n++
		}
		least := leastLanes
		if size-Overhead <= shortText {
			least = leastShort
		}
		if n < least || size-Overhead > maxLaneText {
			each(w, key, packets[:n])
		} else {
			group(w, key, packets[:n])
		}
		packets = packets[n:]
	}
	secret.Scrub()
}

// fill sets the texts and counters of the lanes, and returns the lanes and the length of a text.
// All packets have this length.
func (w *Worker) fill(packets []Packet) (l *lanes, n int) {
	l = w.lanes
	for i := range laneCount {
		if i < len(packets) {
			l.texts[i], l.counters[i] = unsafe.Pointer(unsafe.SliceData(packets[i].Data)),
				packets[i].Counter
		} else {
			l.texts[i], l.counters[i] = unsafe.Pointer(&w.unused), packets[0].Counter
		}
	}
	return l, len(packets[0].Data) - Overhead
}

func (l *lanes) chacha(key *Key, n int) {
	chachaLanes(&key[0], (*uint64)(unsafe.Pointer(&l.texts)), &l.counters[0], &l.keys[0][0], n)
}

func sealGroup(w *Worker, key *Key, packets []Packet) {
	l, n := w.fill(packets)
	l.chacha(key, n)
	l.sum(n)
	for i := range packets {
		l.tag(i, (*[Overhead]byte)(packets[i].Data[n:]))
	}
	l.forget()
}

func openGroup(w *Worker, key *Key, packets []Packet) {
	l, n := w.fill(packets)
	l.chacha(key, 0)
	l.sum(n)
	for i := range packets {
		var tag [Overhead]byte
		l.tag(i, &tag)
		packets[i].OK = subtle.ConstantTimeCompare(tag[:], packets[i].Data[n:]) == 1
	}
	l.chacha(key, n)
	l.forget()
}

func (l *lanes) forget() { *l = lanes{} }

const (
	mask44 = 1<<44 - 1
	mask42 = 1<<42 - 1
)

// sum computes Poly1305 of the lanes' texts of n bytes, except the final reduction; see tag.
func (l *lanes) sum(n int) {
	l.begin()
	polyLanes(&l.poly[0][0], (*uint64)(unsafe.Pointer(&l.texts)), n)
}

// begin sets h to 0, and r to the clamped r of each lane's key.
func (l *lanes) begin() {
	p := &l.poly
	for i := range laneCount {
		t0 := binary.LittleEndian.Uint64(l.keys[i][0:]) & 0x0ffffffc0fffffff
		t1 := binary.LittleEndian.Uint64(l.keys[i][8:]) & 0x0ffffffc0ffffffc
		p[0][i], p[1][i], p[2][i] = 0, 0, 0
		p[3][i] = t0 & mask44
		p[4][i] = (t0>>44 | t1<<20) & mask44
		p[5][i] = t1 >> 24
		p[6][i], p[7][i] = 20*p[4][i], 20*p[5][i]
	}
}

// tag completes Poly1305 of lane i: it reduces h modulo 2^130-5, adds s, and writes the tag.
func (l *lanes) tag(i int, out *[Overhead]byte) {
	h0, h1, h2 := l.poly[0][i], l.poly[1][i], l.poly[2][i]
	for range 2 {
		h1 += h0 >> 44
		h0 &= mask44
		h2 += h1 >> 44
		h1 &= mask44
		h0 += 5 * (h2 >> 42)
		h2 &= mask42
	}

	h1 += h0 >> 44
	h0 &= mask44
	h2 += h1 >> 44
	h1 &= mask44

	// g is h - p. It replaces h if it is not negative.
	g0 := h0 + 5
	g1 := h1 + g0>>44
	g0 &= mask44
	g2 := h2 + g1>>44 - 1<<42
	g1 &= mask44
	m := g2>>63 - 1
	h0 = h0&^m | g0&m
	h1 = h1&^m | g1&m
	h2 = h2&^m | g2&m

	lo, c := bits.Add64(h0|h1<<44, binary.LittleEndian.Uint64(l.keys[i][16:]), 0)
	hi, _ := bits.Add64(h1>>20|h2<<24, binary.LittleEndian.Uint64(l.keys[i][24:]), c)
	binary.LittleEndian.PutUint64(out[0:], lo)
	binary.LittleEndian.PutUint64(out[8:], hi)
}
