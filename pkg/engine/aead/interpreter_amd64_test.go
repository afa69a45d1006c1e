package aead

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	mathrand "math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/kubeveil/kubeveil/internal/filetest"
)

// machine runs the assembly of the AVX-512 tier on any CPU. It knows the instructions of
// lanes_amd64.s as the Intel SDM (volume 2) defines them; another one fails the test. In Go's
// syntax the first source of the SDM is the second operand, and the destination is the last one.
type machine struct {
	t       *testing.T
	code    map[string][]instruction // by function
	labels  map[string]int           // by function and label: the instruction
	data    map[string][]byte
	general map[string]uint64
	z       [32]zmm
	mask    uint64 // k1
	// result of the last instruction that sets flags, and of its comparison
	result int64
	less   bool
}

// zmm is a vector register, quadword 0 first.
type zmm [8]uint64

type instruction struct {
	op   string
	args []string
}

// newMachine reads the assembly.
func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{t: t, code: map[string][]instruction{}, labels: map[string]int{},
		data: map[string][]byte{}}
	function := ""
	for line := range strings.Lines(string(filetest.Read(t, "lanes_amd64.s"))) {
		line, _, _ = strings.Cut(line, "//")
		op, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		args := strings.Split(rest, ", ")
		for i := range args {
			args[i] = strings.TrimSpace(args[i])
		}
		label, isLabel := strings.CutSuffix(op, ":")
		switch {
		case op == "" || op[0] == '#' || op == "GLOBL":
		case op == "DATA":
			m.define(args)
		case op == "TEXT":
			function, _, _ = strings.Cut(strings.TrimPrefix(args[0], "·"), "(")
		case isLabel:
			m.labels[function+" "+label] = len(m.code[function])
		default:
			m.code[function] = append(m.code[function], instruction{op, args})
		}
	}
	return m
}

// define appends to data what a line like "sigma<>+4(SB)/4, $0x3320646e" says.
func (m *machine) define(args []string) {
	name, _, _ := strings.Cut(args[0], "<>")
	b := binary.LittleEndian.AppendUint64(nil, m.immediate(args[1]))
	m.data[name] = append(m.data[name], b[:args[0][len(args[0])-1]-'0']...)
}

func (m *machine) chacha(key *byte, texts, counters *uint64, polyKeys *byte, n int) {
	m.run("chachaLanes", address(key), address(texts), address(counters), address(polyKeys), uint64(n))
}

func (m *machine) poly(state, texts *uint64, n int) {
	m.run("polyLanes", address(state), address(texts), uint64(n))
}

func address[T any](p *T) uint64 { return uint64(uintptr(unsafe.Pointer(p))) }

func (m *machine) run(function string, args ...uint64) {
	m.t.Helper()
	m.data["FP"] = nil
	for _, a := range args {
		m.data["FP"] = binary.LittleEndian.AppendUint64(m.data["FP"], a)
	}

	m.general = map[string]uint64{}
	for _, name := range strings.Fields("AX BX CX DX SI DI R8 R9 R10 R11 R12 R13 R14 R15") {
		m.general[name] = mathrand.Uint64()
	}
	for i := range m.z {
		for k := range m.z[i] {
			m.z[i][k] = mathrand.Uint64()
		}
	}

	code := m.code[function]
	for at := 0; code[at].op != "RET"; {
		i := code[at]
		at++
		if strings.HasPrefix(i.op, "J") {
			if m.jumps(i.op) {
				at = m.labels[function+" "+i.args[0]]
			}
		} else if i.op[0] == 'V' {
			m.vector(i)
		} else {
			m.scalar(i)
		}
	}
}

func (m *machine) jumps(op string) bool {
	switch op {
	case "JMP":
		return true
	case "JZ":
		return m.result == 0
	case "JNZ":
		return m.result != 0
	case "JNS":
		return m.result >= 0
	case "JLT":
		return m.less
	case "JGE":
		return !m.less
	case "JLE":
		return m.less || m.result == 0
	}
	m.t.Fatalf("unknown instruction %s", op)
	return false
}

func (m *machine) scalar(i instruction) {
	to := i.args[len(i.args)-1]
	a := m.word(i.args[0])
	switch i.op {
	case "MOVQ":
		m.general[to] = a
		return
	case "KMOVQ":
		m.mask = a
		return
	case "CMPQ": // The first operand is the minuend.
		b := m.word(to)
		m.result, m.less = int64(a-b), int64(a) < int64(b)
		return
	case "TESTQ":
		m.result = int64(a & m.word(to))
		m.less = m.result < 0
		return
	}

	b := m.word(to)
	switch i.op {
	case "ADDQ":
		m.result, m.less = int64(b+a), int64(b) < -int64(a)
	case "SUBQ":
		m.result, m.less = int64(b-a), int64(b) < int64(a)
	case "DECQ":
		m.result = int64(b - 1)
	case "XORQ":
		m.result = int64(b ^ a)
	case "SHLQ":
		m.result = int64(b << (a & 63))
	default:
		m.t.Fatalf("unknown instruction %v", i)
	}
	m.general[to] = uint64(m.result)
}

// word returns the value of a general register, an immediate, or 8 bytes of memory.
func (m *machine) word(arg string) uint64 {
	switch {
	case arg == "CL":
		return m.general["CX"] & 0xff
	case arg[0] == '$':
		return m.immediate(arg)
	case strings.Contains(arg, "("):
		return binary.LittleEndian.Uint64(m.memory(arg, 8))
	}
	return m.general[arg]
}

func (m *machine) immediate(arg string) uint64 {
	text := strings.TrimPrefix(arg, "$")
	if v, err := strconv.ParseUint(text, 0, 64); err == nil {
		return v
	}
	v, err := strconv.ParseInt(text, 0, 64)
	if err != nil {
		m.t.Fatal(err)
	}
	return uint64(v)
}

// memory returns n bytes at an operand like "64(DI)(R15*1)", "sigma<>+4(SB)" or "n+32(FP)".
func (m *machine) memory(arg string, n int) []byte {
	first, rest, _ := strings.Cut(arg, "(")
	if name, offset, ok := strings.Cut(first, "+"); ok && name != "" {
		name = strings.TrimSuffix(name, "<>")
		if strings.HasPrefix(rest, "FP") {
			name = "FP"
		}
		at := m.immediate(offset)
		return m.data[name][at : at+uint64(n)]
	}

	at := uint64(0)
	if first != "" {
		at = m.immediate(first)
	}
	base, index, _ := strings.Cut(strings.TrimSuffix(rest, ")"), ")(")
	at += m.general[base] + m.general[strings.TrimSuffix(index, "*1")]
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&at)), n)
}

// register returns the number of a vector register.
func (m *machine) register(arg string) int {
	n, err := strconv.Atoi(arg[1:])
	if err != nil || arg[0] != 'Z' && arg[0] != 'Y' {
		m.t.Fatalf("%s is not a vector register", arg)
	}
	return n
}

// source returns a vector register, or 64 bytes of memory.
func (m *machine) source(arg string) (v zmm) {
	if !strings.Contains(arg, "(") {
		return m.z[m.register(arg)]
	}
	b := m.memory(arg, 64)
	for i := range v {
		v[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return v
}

func (v *zmm) bytes() *[64]byte { return (*[64]byte)(unsafe.Pointer(v)) }

func (v *zmm) words() *[16]uint32 { return (*[16]uint32)(unsafe.Pointer(v)) }

// quads and words are the instructions that do the same to each element of two sources.
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

// permute does the instructions that move elements between places.
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

// move copies a register or memory; of 64 bytes, of 32 (y registers), or of those of the mask.
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

func (i instruction) String() string { return fmt.Sprint(i.op, " ", strings.Join(i.args, ", ")) }
