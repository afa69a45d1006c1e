package secret

import (
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	chunk = 64 << 10
	unit  = 256
	// largest is the size in bytes of the largest value that can be allocated.
	largest = 8 << 10
)

// Arena allocates memory for keys. It is safe for concurrent use. The zero value is ready.
type Arena struct {
	mu       sync.Mutex
	free     [largest/unit + 1][]unsafe.Pointer // by size in units
	chunks   [][]byte
	rest     []byte // unused end of the newest chunk
	unlocked bool
}

// Alloc returns a zeroed value of T in locked memory. T must not contain pointers.
func Alloc[T any](a *Arena) (*T, error) {
	p, err := a.alloc(unsafe.Sizeof(*new(T)))
	return (*T)(p), err
}

// Free overwrites *p with zeros and returns its memory to the arena. p may be nil.
func Free[T any](a *Arena, p *T) {
	if p == nil {
		return
	}
	size := unsafe.Sizeof(*p)
	clear(unsafe.Slice((*byte)(unsafe.Pointer(p)), size))
	n := units(size)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.free[n] = append(a.free[n], unsafe.Pointer(p))
}

func units(size uintptr) int { return int(size+unit-1) / unit }

func (a *Arena) alloc(size uintptr) (unsafe.Pointer, error) {
	n := units(size)
	if n > largest/unit {
		return nil, fmt.Errorf("allocate secret of %d bytes: the limit is %d", size, largest)
	}

	a.mu.Lock()
	defer a.mu.Unlock()
	if l := len(a.free[n]); l > 0 {
		p := a.free[n][l-1]
		a.free[n] = a.free[n][:l-1]
		return p, nil
	}

	if len(a.rest) < n*unit {
		b, err := unix.Mmap(-1, 0, chunk, unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			return nil, fmt.Errorf("map memory for secrets: %w", err)
		}
		if unix.Mlock(b) != nil {
			a.unlocked = true
		}
		// Old kernels may not support these. Errors are ignored, because the lock is the important
		// protection.
		_ = unix.Madvise(b, unix.MADV_DONTDUMP)
		_ = unix.Madvise(b, unix.MADV_WIPEONFORK)
		a.chunks = append(a.chunks, b)
		a.rest = b
	}

	p := unsafe.Pointer(&a.rest[0])
	a.rest = a.rest[n*unit:]
	return p, nil
}

// Locked reports whether all memory of the arena is locked against swapping.
func (a *Arena) Locked() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.unlocked
}

// Close overwrites and unmaps all memory. No value of the arena may be used afterwards.
func (a *Arena) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var first error
	for _, b := range a.chunks {
		clear(b)
		if err := unix.Munmap(b); err != nil && first == nil {
			first = fmt.Errorf("unmap memory of secrets: %w", err)
		}
	}
	a.chunks, a.rest = nil, nil
	clear(a.free[:])
	return first
}
