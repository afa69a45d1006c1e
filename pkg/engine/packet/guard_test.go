package packet

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
)

// guarded returns a copy of b that ends at the end of mapped memory, so that an access behind it is
// a fault, also in assembly and system calls.
func guarded(t testing.TB, b []byte) []byte {
	t.Helper()
	page := unix.Getpagesize()
	size := (len(b) + page - 1) / page * page
	m, err := unix.Mmap(-1, 0, size+page, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	errtest.Must(t, err)
	t.Cleanup(func() { unix.Munmap(m) })
	errtest.Must(t, unix.Mprotect(m[size:], unix.PROT_NONE))
	out := m[size-len(b) : size : size]
	copy(out, b)
	return out
}
