// Package memtest looks for keys in the memory of the process that runs a test. Only tests import
// it.
//
// The search must not find the test's own copy of the key. So a test changes its copy with Cover,
// and changes it back only for the call of Count.
package memtest

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/filetest"
)

// Cover changes a key in place so that Count does not find it. A second call restores the key.
func Cover(b []byte) {
	for i := range b {
		b[i] ^= 0x5a
	}
}

// Everywhere selects all memory.
func Everywhere(uint64) bool { return true }

// OutsideHeap selects memory outside of Go's heap. The heap's arenas lie behind a base that may be
// random (runtime/malloc.go, mallocinit); other mappings are far from it.
func OutsideHeap(at uint64) bool {
	heap := address(inHeap)
	return at+1<<36 < heap || at > heap+1<<36
}

var inHeap = make([]byte, 1<<16)

func address(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&b[0]))) }

// ofRaceDetector reports whether a mapping belongs to the race detector. Such a mapping has records
// of memory accesses, but no copies of data (tsan_platform.h of LLVM, Go on x86-64). Without the
// detector, only Go's heap can be in this range.
func ofRaceDetector(begin uint64) bool {
	return begin >= 0x2000<<32 && begin < 0x4000<<32 && OutsideHeap(begin)
}

// step is the size of one read of memory, bytes.
const step = 1 << 20

// Count returns how often b occurs in the writable mappings of the process for which where returns
// true, including b itself. b must have at most 32 bytes. Count logs the address of each
// occurrence.
func Count(t testing.TB, b []byte, where func(begin uint64) bool) int {
	t.Helper()
	maps := filetest.Read(t, "/proc/self/maps")

	mem, err := os.Open("/proc/self/mem")
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	buf, err := unix.Mmap(-1, 0, step+64, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(buf) }()

	own := address(buf)
	n := 0
	for line := range strings.Lines(string(maps)) {
		var from, to uint64
		var mode string
		if _, err := fmt.Sscanf(line, "%x-%x %s", &from, &to, &mode); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if !strings.HasPrefix(mode, "rw") || own >= from && own < to || ofRaceDetector(from) ||
			!where(from) {
			continue
		}

		for at := from; at < to; at += step {
			k, _ := mem.ReadAt(buf[:min(to-at, step+uint64(len(b))-1)], int64(at))
			for rest := buf[:k]; ; {
				i := bytes.Index(rest, b)
				if i < 0 {
					break
				}
				n++
				t.Logf("found at %#x in %s", at+uint64(k-len(rest)+i), strings.TrimSpace(line))
				rest = rest[i+1:]
			}
		}
	}

	return n
}
