package secret

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Sealed is memory that one process fills and another reads: a memfd (memfd_create(2)). It is
// locked against swapping while it is mapped, and kept out of core dumps.
type Sealed struct {
	// FD is the descriptor to send. Close closes it.
	FD int
	// Bytes is the mapping. It is writable in the process that made it, and read-only in the other.
	Bytes []byte

	maker    bool
	unlocked bool
}

// maxSealed bounds the size that OpenSealed maps, bytes.
const maxSealed = 1 << 30

// seals forbid changes of the size and writes other than by the mapping that exists, which the
// maker needs to overwrite the memory at the end.
const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_FUTURE_WRITE

// NewSealed returns zeroed memory of size bytes. The caller must call Seal before it sends FD.
func NewSealed(size int) (*Sealed, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate("kubeveil", flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate("kubeveil", flags) // Kernels before 6.3.
	}
	if err != nil {
		return nil, fmt.Errorf("make sealed memory: %w", err)
	}

	s := &Sealed{FD: fd, maker: true}
	err = unix.Ftruncate(fd, int64(size))
	if err == nil {
		err = s.mapped(size, unix.PROT_READ|unix.PROT_WRITE)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("make sealed memory of %d bytes: %w", size, err)
	}
	return s, nil
}

// Seal forbids changes of the size, and writes other than by Bytes.
func (s *Sealed) Seal() error {
	if _, err := unix.FcntlInt(uintptr(s.FD), unix.F_ADD_SEALS, seals|unix.F_SEAL_SEAL); err != nil {
		return fmt.Errorf("seal memory: %w", err)
	}
	return nil
}

// OpenSealed maps sealed memory of another process for reading. A descriptor without the seals is
// an error, because the other process could shrink the memory during a read. Unless it returns an
// error, OpenSealed takes ownership of fd.
func OpenSealed(fd int) (*Sealed, error) {
	have, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, fmt.Errorf("read seals: %w", err)
	}
	if have&seals != seals {
		return nil, fmt.Errorf("memory has seals %#x, want %#x", have, seals)
	}

	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("read size of sealed memory: %w", err)
	}
	if st.Size <= 0 || st.Size > maxSealed {
		return nil, fmt.Errorf("sealed memory has %d bytes, want 1 to %d", st.Size, maxSealed)
	}

	s := &Sealed{FD: fd}
	if err := s.mapped(int(st.Size), unix.PROT_READ); err != nil {
		return nil, fmt.Errorf("map sealed memory: %w", err)
	}
	return s, nil
}

func (s *Sealed) mapped(size, prot int) error {
	b, err := unix.Mmap(s.FD, 0, size, prot, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	s.unlocked = unix.Mlock(b) != nil
	// Errors are ignored, because the lock is the important protection.
	_ = unix.Madvise(b, unix.MADV_DONTDUMP)
	_ = unix.Madvise(b, unix.MADV_DONTFORK)
	s.Bytes = b
	return nil
}

// Locked reports whether the memory is locked against swapping.
func (s *Sealed) Locked() bool { return !s.unlocked }

// Close unmaps the memory. In the process that made the memory, it first overwrites the content for
// both processes. A second call does nothing.
func (s *Sealed) Close() {
	if s.Bytes == nil {
		return
	}
	if s.maker {
		clear(s.Bytes)
	}
	_ = unix.Munmap(s.Bytes)
	unix.Close(s.FD)
	s.Bytes = nil
}
