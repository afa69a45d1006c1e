package keyring

import (
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha512"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// redacted is what every text form of a Secret says.
const redacted = "redacted"

// MaxSize is the most that a Secret holds, bytes.
const MaxSize = 512

// ErrLocked matches when memory cannot be locked.
var ErrLocked = errors.New("memory cannot be locked: give the process CAP_IPC_LOCK")

// Secret is a key in locked memory. Nil is no key. Its methods may be called from several
// goroutines, except Wipe, after which it is empty. One that is forgotten without Wipe is wiped
// when the garbage collector finds it.
type Secret struct {
	// Behind functions because fmt prints the unexported fields of other people's values by
	// reflection, which sees an address here.
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
	// The closures hold the slot and not the Secret, else it would never be collected.
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

// Bytes is the secret itself, valid until Wipe, not to be changed, copied or kept. A wiped or nil
// Secret has none. Keep s alive (runtime.KeepAlive) for as long as the slice is in use.
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
	if s != nil && s.wipe != nil {
		s.wipe()
	}
}

// Equal compares in constant time. Nothing equals a secret that is empty.
func (s *Secret) Equal(other *Secret) bool {
	defer runtime.KeepAlive(s)
	defer runtime.KeepAlive(other)
	return s.Len() > 0 && subtle.ConstantTimeCompare(s.Bytes(), other.Bytes()) == 1
}

// Derive makes a Secret of n bytes from s, which must be 64 random bytes: HKDF-Expand with SHA-512
// (RFC 5869, 2.3). Two that differ in info are independent.
func (s *Secret) Derive(info string, n int) (*Secret, error) {
	defer runtime.KeepAlive(s)
	if s.Len() != sha512.Size {
		return nil, fmt.Errorf("derive from %d bytes: want %d", s.Len(), sha512.Size)
	}
	b, err := hkdf.Expand(sha512.New, s.Bytes(), info, n)
	if err != nil {
		return nil, fmt.Errorf("derive key: %w", err)
	}
	return NewSecret(b)
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

// vault is where all secrets of the process lie.
var vault locked

// locked hands out slots of MaxSize bytes of locked memory. Its pages are kept for ever: few
// secrets live at once.
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

// Harden makes the process one whose memory is not dumped, read by others of the same user, or
// swapped: PR_SET_DUMPABLE 0, RLIMIT_CORE 0, and mlockall of what it has and will have, page by
// page as it is touched. Call it before the first key exists.
//
// It needs CAP_IPC_LOCK, and for good: without, the kernel counts every address that Go reserves,
// which is more than a GiB, against RLIMIT_MEMLOCK. Room that is reserved and not used takes no
// memory, and the runtime still gives back what it frees (madvise fails on locked memory, so it
// maps that part anew). Programs that are started are not locked; they too dump no core.
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
