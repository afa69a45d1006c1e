// Package memtest looks for keys in the memory of the process that runs a test. Only tests import
// it.
//
// The search must not find the test's own copy of the key. So a test keeps only a covered copy,
// which Covered returns and Count takes. Neither loads a key into vector registers: the kernel and
// the runtime save these in memory when a signal preempts a goroutine.
package memtest

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
)

// cover is added (XOR) to each byte of a key.
const cover = 0x5a

// Covered returns a copy of a key, changed so that Count does not find the copy.
func Covered(key []byte) []byte {
	out := make([]byte, len(key))
	for i := range key {
		out[i] = key[i] ^ cover
	}
	return out
}

// uncoveredAt reports whether b begins with the key.
func uncoveredAt(b, covered []byte) bool {
	if len(b) < len(covered) {
		return false
	}
	for i := range covered {
		if b[i]^cover != covered[i] {
			return false
		}
	}
	return true
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

// Count returns how often a key of at most 64 bytes occurs in the writable mappings of the process
// for which where returns true. It takes what Covered returned for the key, and logs the address of
// each occurrence.
func Count(t testing.TB, covered []byte, where func(begin uint64) bool) int {
	t.Helper()
	maps := filetest.Read(t, "/proc/self/maps")

	mem, err := os.Open("/proc/self/mem")
	errtest.Must(t, err)
	defer mem.Close()
	buf, err := unix.Mmap(-1, 0, step+64, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	errtest.Must(t, err)
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
			k, _ := mem.ReadAt(buf[:min(to-at, step+uint64(len(covered))-1)], int64(at))
			for rest := buf[:k]; ; rest = rest[1:] {
				i := bytes.IndexByte(rest, covered[0]^cover)
				if i < 0 {
					break
				}
				rest = rest[i:]
				if uncoveredAt(rest, covered) {
					n++
					t.Logf("found at %#x in %s", at+uint64(k-len(rest)), strings.TrimSpace(line))
				}
			}
		}
	}

	return n
}
