package aead

import (
	"encoding/binary"
	"fmt"
	mathrand "math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
)

// machine runs the assembly of the AVX-512 tier on any CPU. It implements the instructions in
// lanes_amd64.s as the Intel SDM (volume 2) defines them. Any other instruction fails the test. In
// Go's syntax, the first source of the SDM is the second operand, and the destination is the last
// operand.
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

// macros are the macros of a file, by name.
type macros map[string]struct {
	params []string
	body   string
}

var (
	definition = regexp.MustCompile(`^#define (\w+)(?:\((.*?)\))?\s(.*)`)
	call       = regexp.MustCompile(`^(\w+)\((.*)\)$`)
	word       = regexp.MustCompile(`\w+`)
)

// expand returns the statements of a line.
func (all macros) expand(line string) []string {
	line = word.ReplaceAllStringFunc(line, func(w string) string {
		if m, ok := all[w]; ok && m.params == nil {
			return m.body
		}
		return w
	})
	var out []string
	for part := range strings.SplitSeq(line, ";") {
		part = strings.TrimSpace(part)
		c := call.FindStringSubmatch(part)
		if c == nil {
			out = append(out, part)
			continue
		}
		m, args := all[c[1]], strings.Split(c[2], ", ")
		out = append(out, all.expand(word.ReplaceAllStringFunc(m.body, func(w string) string {
			if i := slices.Index(m.params, w); i >= 0 {
				return args[i]
			}
			return w
		}))...)
	}
	return out
}

// statements returns the statements of assembly, without its macros and comments.
func statements(text string) (out []string) {
	all := macros{}
	for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", "")) {
		line, _, _ = strings.Cut(line, "//")
		d := definition.FindStringSubmatch(line)
		if d == nil {
			out = append(out, all.expand(line)...)
			continue
		}
		m := all[d[1]]
		if d[2] != "" {
			m.params = strings.Split(d[2], ", ")
		}
		m.body = d[3]
		all[d[1]] = m
	}
	return out
}

// newMachine reads the assembly.
func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{t: t, code: map[string][]instruction{}, labels: map[string]int{},
		data: map[string][]byte{}}
	function := ""
	for _, line := range statements(string(filetest.Read(t, "lanes_amd64.s"))) {
		op, rest, _ := strings.Cut(line, " ")
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

// define appends to data the bytes of a line like "sigma<>+4(SB)/4, $0x3320646e".
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
	errtest.Must(m.t, err)
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

func (i instruction) String() string { return fmt.Sprint(i.op, " ", strings.Join(i.args, ", ")) }
