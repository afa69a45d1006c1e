package keyring

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// hardenEnv marks a separate process that hardens itself, because hardening cannot be undone in
// this process.
const hardenEnv = "KUBEVEIL_TEST_HARDEN"

func TestHarden(t *testing.T) {
	nettest.NeedRoot(t)
	if os.Getenv(hardenEnv) == "" {
		again := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHarden$", "-test.v")
		again.Env = append(os.Environ(), hardenEnv+"=1")
		if out, err := again.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}

	errtest.Must(t, Harden())
	if dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); dumpable != 0 ||
		err != nil {
		t.Errorf("dumpable %d, %v", dumpable, err)
	}
	var core unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &core); err != nil || core != (unix.Rlimit{}) {
		t.Errorf("core %+v, %v", core, err)
	}

	lockedWhenTouched(t)
	heapIsGivenBack(t)
	// Programs that the process starts are not hardened.
	out, err := exec.CommandContext(t.Context(), "cat", "/proc/self/status").Output()
	if err != nil || field(string(out), "VmLck:") != 0 {
		t.Errorf("a child's memory is locked: %v: %s", err, out)
	}
}

// lockedWhenTouched checks that the pages of memory that is mapped later are locked when they are
// first used, and take no memory before.
func lockedWhenTouched(t *testing.T) {
	t.Helper()
	page := unix.Getpagesize()
	b, err := unix.Mmap(-1, 0, 64*page, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_ANON|unix.MAP_PRIVATE)
	errtest.Must(t, err)
	defer unix.Munmap(b)
	before := status(t, "VmRSS:")
	if err := unix.Madvise(b, unix.MADV_DONTNEED); err == nil {
		t.Error("locked memory was returned")
	}
	big, err := unix.Mmap(-1, 0, 64<<20, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_ANON|unix.MAP_PRIVATE)
	errtest.Must(t, err)
	defer unix.Munmap(big)
	if after := status(t, "VmRSS:"); after-before > 32<<10 {
		t.Errorf("64 MiB of untouched memory take %d KiB", after-before)
	}
}

// heapIsGivenBack checks that the runtime still returns freed memory to the kernel. The usual way
// fails for locked memory.
func heapIsGivenBack(t *testing.T) {
	t.Helper()
	b := make([]byte, 64<<20)
	for i := 0; i < len(b); i += unix.Getpagesize() {
		b[i] = 1
	}
	full := status(t, "VmRSS:")
	runtime.KeepAlive(b)
	debug.FreeOSMemory()
	if after := status(t, "VmRSS:"); full-after < 48<<10 {
		t.Errorf("%d KiB resident, and %d after 64 MiB were freed", full, after)
	}
}

func status(t *testing.T, name string) int {
	t.Helper()
	b := filetest.Read(t, "/proc/self/status")
	return field(string(b), name)
}

// field returns a number of the text of /proc/<pid>/status, in KiB.
func field(status, name string) int {
	var n int
	for line := range strings.Lines(status) {
		if v, ok := strings.CutPrefix(line, name); ok {
			_, _ = fmt.Sscan(v, &n)
		}
	}
	return n
}
