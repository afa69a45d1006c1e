package aead

import (
	"encoding/binary"
	"math/bits"
	"strings"
	"unsafe"
)

func (v *zmm) bytes() *[64]byte { return (*[64]byte)(unsafe.Pointer(v)) }

func (v *zmm) words() *[16]uint32 { return (*[16]uint32)(unsafe.Pointer(v)) }

// quads are the instructions that do the same to each element of two sources, shifts those that shift
// each element by a number.
var (
	quads = map[string]func(to *uint64, a, b uint64){
		"VPADDQ": func(to *uint64, a, b uint64) { *to = a + b },
		"VPANDQ": func(to *uint64, a, b uint64) { *to = a & b },
		"VPORQ":  func(to *uint64, a, b uint64) { *to = a | b },
		"VPXORQ": func(to *uint64, a, b uint64) { *to = a ^ b },
		"VPXORD": func(to *uint64, a, b uint64) { *to = a ^ b },
		"VPMADD52LUQ": func(to *uint64, a, b uint64) {
			_, low := bits.Mul64(a&mask52, b&mask52)
			*to += low & mask52
		},
		"VPMADD52HUQ": func(to *uint64, a, b uint64) {
			high, low := bits.Mul64(a&mask52, b&mask52)
			*to += high<<12 | low>>52
		},
	}
	shifts = map[string]func(a, by uint64) uint64{
		"VPSLLQ": func(a, by uint64) uint64 { return a << by },
		"VPSRLQ": func(a, by uint64) uint64 { return a >> by },
		"VPROLD": func(a, by uint64) uint64 {
			rotate := func(w uint32) uint64 { return uint64(bits.RotateLeft32(w, int(by))) }
			return rotate(uint32(a>>32))<<32 | rotate(uint32(a))
		},
	}
)

const mask52 = 1<<52 - 1

func (m *machine) vector(i instruction) {
	if i.op == "VZEROUPPER" {
		return
	}
	if strings.HasPrefix(i.op, "VMOV") {
		m.move(i)
		return
	}

	args := i.args
	to := &m.z[m.register(args[len(args)-1])]
	if f := quads[i.op]; f != nil {
		b, a := m.source(args[0]), m.source(args[1])
		for k := range to {
			f(&to[k], a[k], b[k])
		}
		return
	}
	if f := shifts[i.op]; f != nil {
		by, a := m.immediate(args[0]), m.source(args[1])
		for k := range to {
			to[k] = f(a[k], by)
		}
		return
	}

	switch i.op {
	case "VPADDD", "VPADDD.BCST":
		a := m.source(args[1])
		b := zmm{}
		if i.op == "VPADDD" {
			b = m.source(args[0])
		} else {
			b.fill(binary.LittleEndian.Uint32(m.memory(args[0], 4)))
		}
		for k := range to.words() {
			to.words()[k] = a.words()[k] + b.words()[k]
		}
	case "VPBROADCASTD":
		to.fill(binary.LittleEndian.Uint32(m.memory(args[0], 4)))
	case "VPBROADCASTQ":
		for k, w := 0, m.word(args[0]); k < len(to); k++ {
			to[k] = w
		}
	default:
		m.permute(i, to)
	}
}

func (v *zmm) fill(w uint32) {
	for k := range v.words() {
		v.words()[k] = w
	}
}

// permute executes the instructions that move elements between places.
func (m *machine) permute(i instruction, to *zmm) {
	switch i.op {
	case "VPMOVQD":
		a := m.source(i.args[0])
		*to = zmm{}
		for k, q := range a {
			to.words()[k] = uint32(q)
		}
	case "VINSERTI64X4": // of the upper half
		b, a := m.source(i.args[1]), m.source(i.args[2])
		copy(a[4:], b[:4])
		*to = a
	case "VPUNPCKLQDQ", "VPUNPCKHQDQ":
		b, a := m.source(i.args[0]), m.source(i.args[1])
		high := strings.Count(i.op, "H")
		for k := 0; k < 8; k += 2 {
			to[k], to[k+1] = a[k+high], b[k+high]
		}
	case "VPUNPCKLDQ", "VPUNPCKHDQ":
		b, a := m.source(i.args[0]), m.source(i.args[1])
		high := 2 * strings.Count(i.op, "H")
		for k := 0; k < 16; k += 4 {
			w, x, y := to.words()[k:], a.words()[k+high:], b.words()[k+high:]
			w[0], w[1], w[2], w[3] = x[0], y[0], x[1], y[1]
		}
	case "VSHUFI32X4":
		by, b, a := m.immediate(i.args[0]), m.source(i.args[1]), m.source(i.args[2])
		for k := range uint64(4) {
			from := &a
			if k >= 2 {
				from = &b
			}
			at := 2 * (by >> (2 * k) & 3)
			to[2*k], to[2*k+1] = from[at], from[at+1]
		}
	default:
		m.t.Fatalf("unknown instruction %v", i)
	}
}

// move copies a register or memory: 64 bytes, 32 bytes (y registers), or the bytes of the mask.
func (m *machine) move(i instruction) {
	from, to := i.args[0], i.args[len(i.args)-1]
	mask := uint64(1<<64 - 1)
	switch i.op {
	case "VMOVDQU8", "VMOVDQU8.Z":
		mask = m.mask
	case "VMOVDQU":
		mask = 1<<32 - 1
	case "VMOVDQU64", "VMOVDQA64":
	default:
		m.t.Fatalf("unknown instruction %v", i)
	}

	v := zmm{}
	if !strings.Contains(from, "(") {
		v = m.z[m.register(from)]
	} else {
		for k, b := range m.memory(from, bits.Len64(mask)) {
			v.bytes()[k] = b * byte(mask>>k&1)
		}
	}

	if !strings.Contains(to, "(") {
		m.z[m.register(to)] = v
		return
	}
	b := m.memory(to, bits.Len64(mask))
	for k := range b {
		if mask>>k&1 == 1 {
			b[k] = v.bytes()[k]
		}
	}
}
