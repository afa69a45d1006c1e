package keyring

import (
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// redacted is the text form of every Secret.
const redacted = "redacted"

// MaxSize is the largest size of a Secret in bytes.
const MaxSize = 512

// ErrLocked means that memory cannot be locked.
var ErrLocked = errors.New("memory cannot be locked: give the process CAP_IPC_LOCK")

// Secret is a key in locked memory. Nil means that there is no key. Its methods except Wipe may be
// called from several goroutines. After Wipe it is empty. The garbage collector wipes a Secret that
// was not wiped.
type Secret struct {
	// The fields are functions, so that fmt cannot print the key: it prints unexported fields of
	// nested values by reflection.
	bytes func() []byte
	wipe  func()
}

// NewSecret moves b to a Secret. It wipes b, also on error. It returns an error if b is empty or
// longer than MaxSize.
func NewSecret(b []byte) (*Secret, error) {
	defer clear(b)
	s, err := allocate(len(b))
	if err != nil {
		return nil, err
	}
	copy(s.bytes(), b)
	return s, nil
}

// Generate returns a random Secret of n bytes.
func Generate(n int) (*Secret, error) {
	s, err := allocate(n)
	if err != nil {
		return nil, err
	}
	if _, err := rand.Read(s.bytes()); err != nil {
		s.Wipe()
		return nil, fmt.Errorf("generate key: %w", err)
	}
	return s, nil
}

func allocate(n int) (*Secret, error) {
	if n < 1 || n > MaxSize {
		return nil, fmt.Errorf("secret of %d bytes: want 1 to %d", n, MaxSize)
	}
	slot, err := vault.take()
	if err != nil {
		return nil, err
	}
	// The closures refer to the slot and not to the Secret, so that the Secret can be collected.
	held := slot[:n]
	s := &Secret{bytes: func() []byte { return held }}
	forgotten := runtime.AddCleanup(s, vault.give, slot)
	s.wipe = sync.OnceFunc(func() {
		forgotten.Stop()
		held = nil
		vault.give(slot)
	})
	return s, nil
}

// Bytes returns the secret's memory, which is valid until Wipe. Do not change, copy or keep it. For
// a wiped or nil Secret it returns nil. Keep s alive (runtime.KeepAlive) while the slice is in use.
func (s *Secret) Bytes() []byte {
	if s == nil || s.bytes == nil {
		return nil
	}
	return s.bytes()
}

// Len returns the size in bytes. It is 0 after Wipe.
func (s *Secret) Len() int { return len(s.Bytes()) }

// Wipe overwrites the secret. It may be called again. s may be nil.
func (s *Secret) Wipe() {
	// Keep s alive until its cleanup is stopped. Otherwise the collector would release the memory
	// again.
	defer runtime.KeepAlive(s)
	if s != nil && s.wipe != nil {
		s.wipe()
	}
}

// Equal compares in constant time. An empty secret does not equal any other.
func (s *Secret) Equal(other *Secret) bool {
	defer runtime.KeepAlive(s)
	defer runtime.KeepAlive(other)
	return s.Len() > 0 && subtle.ConstantTimeCompare(s.Bytes(), other.Bytes()) == 1
}

// Format prints "redacted" for every verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// String returns "redacted".
func (s Secret) String() string { return redacted }

// GoString returns "redacted".
func (s Secret) GoString() string { return redacted }

// LogValue returns "redacted".
func (s Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText returns "redacted".
func (s Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// MarshalJSON returns "redacted".
func (s Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// vault holds all secrets of the process.
var vault locked

// locked allocates slots of MaxSize bytes of locked memory. It never frees its pages, because few
// secrets exist at the same time.
type locked struct {
	mu   sync.Mutex
	free [][]byte
}

func (l *locked) take() ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.free) == 0 {
		if err := l.growLocked(); err != nil {
			return nil, err
		}
	}
	slot := l.free[len(l.free)-1]
	l.free = l.free[:len(l.free)-1]
	return slot, nil
}

func (l *locked) give(slot []byte) {
	clear(slot)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.free = append(l.free, slot)
}

func (l *locked) growLocked() error {
	page, err := unix.Mmap(-1, 0, unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return fmt.Errorf("memory for keys: %w", err)
	}
	if err := unix.Mlock(page); err != nil {
		return errors.Join(fmt.Errorf("%w: %w", ErrLocked, err), unix.Munmap(page))
	}
	for _, advice := range []int{unix.MADV_DONTDUMP, unix.MADV_DONTFORK} {
		if err := unix.Madvise(page, advice); err != nil {
			return errors.Join(fmt.Errorf("memory for keys: %w", err), unix.Munmap(page))
		}
	}
	for i := 0; i+MaxSize <= len(page); i += MaxSize {
		l.free = append(l.free, page[i:i+MaxSize:i+MaxSize])
	}
	return nil
}

// Harden protects the memory of the process: it is not dumped, not readable by other processes of
// the user, and not swapped. It sets PR_SET_DUMPABLE and RLIMIT_CORE to 0, and calls mlockall for
// present and future pages, which locks each page when it is first used. Call it before the first
// key exists.
//
// Harden needs CAP_IPC_LOCK for the life of the process. Without that capability, the kernel counts
// all addresses that Go reserves, more than a GiB, against RLIMIT_MEMLOCK. Unused addresses take no
// memory. The runtime can still free memory: it maps pages again, because madvise fails on locked
// pages. The memory of child processes is not locked, but they dump no core either.
func Harden() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("forbid core dumps: %w", err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("forbid core dumps: %w", err)
	}
	if err := unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE | unix.MCL_ONFAULT); err != nil {
		return fmt.Errorf("%w: %w", ErrLocked, err)
	}
	return nil
}
