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

// redacted is every text form of a Secret.
const redacted = "redacted"

// MaxSize is the largest size of a Secret in bytes.
const MaxSize = 512

// ErrLocked matches when memory cannot be locked.
var ErrLocked = errors.New("memory cannot be locked: give the process CAP_IPC_LOCK")

// Secret is a key in locked memory. Nil means that there is no key. Its methods may be called from
// several goroutines, except Wipe, after which it is empty. The garbage collector wipes a Secret
// that was not wiped.
type Secret struct {
	// Functions hide the address, because fmt prints unexported fields of nested values by
	// reflection.
	bytes func() []byte
	wipe  func()
}

// NewSecret moves b into a Secret: b is wiped, also on error. Empty, and longer than MaxSize, are
// errors.
func NewSecret(b []byte) (*Secret, error) {
	defer clear(b)
	s, err := allocate(len(b))
	if err != nil {
		return nil, err
	}
	copy(s.bytes(), b)
	return s, nil
}

// Generate makes a random Secret of n bytes.
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
	// The closures hold the slot and not the Secret; otherwise it would never be collected.
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

// Bytes returns the secret itself, valid until Wipe. Do not change, copy or keep it. A wiped or nil
// Secret returns none. Keep s alive (runtime.KeepAlive) while the slice is in use.
func (s *Secret) Bytes() []byte {
	if s == nil || s.bytes == nil {
		return nil
	}
	return s.bytes()
}

// Len is the size, bytes; 0 once wiped.
func (s *Secret) Len() int { return len(s.Bytes()) }

// Wipe overwrites the secret. It may be called again, and on nil.
func (s *Secret) Wipe() {
	// Until the cleanup is stopped: otherwise the collector would release the same memory again.
	defer runtime.KeepAlive(s)
	if s != nil && s.wipe != nil {
		s.wipe()
	}
}

// Equal compares in constant time. An empty secret equals nothing.
func (s *Secret) Equal(other *Secret) bool {
	defer runtime.KeepAlive(s)
	defer runtime.KeepAlive(other)
	return s.Len() > 0 && subtle.ConstantTimeCompare(s.Bytes(), other.Bytes()) == 1
}

// Format prints "redacted" for every verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// String is "redacted".
func (s Secret) String() string { return redacted }

// GoString is "redacted".
func (s Secret) GoString() string { return redacted }

// LogValue is "redacted".
func (s Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText returns "redacted".
func (s Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// MarshalJSON returns "redacted".
func (s Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// vault holds all secrets of the process.
var vault locked

// locked allocates slots of MaxSize bytes of locked memory. Its pages are never freed: few secrets
// live at once.
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
// the user, and not swapped. It sets PR_SET_DUMPABLE 0 and RLIMIT_CORE 0, and calls mlockall for
// present and future pages, which locks each as it is touched. Call it before the first key exists.
//
// Harden needs CAP_IPC_LOCK for the life of the process. Without it the kernel counts every address
// that Go reserves, more than a GiB, against RLIMIT_MEMLOCK. Reserved and unused addresses take no
// memory, and the runtime still frees memory: madvise fails on locked pages, so it maps them again.
// Child processes are not locked; they dump no core either.
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
