package blk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Align is the unit of offsets and lengths of reads and writes, bytes. Direct I/O of this unit
// works on every disk.
const Align = 4096

// ErrUnaligned matches errors of reads and writes whose offset or length is not a multiple of
// Align.
var ErrUnaligned = errors.New("not a multiple of 4096 bytes")

// ErrOther matches when a path leads to another device than it did.
var ErrOther = errors.New("it is another device now")

// Disk is a block device, or a file in its place. ReadAt and WriteAt need offsets and lengths that
// are multiples of Align; their buffers may lie anywhere. They and Sync may be called from several
// goroutines.
type Disk interface {
	io.ReaderAt
	io.WriterAt
	// Sync returns when everything written before is on stable storage.
	Sync() error
	// Size is the present size, bytes.
	Size() (int64, error)
	Close() error
}

// Buffer is n bytes of zeros that direct I/O can use without a copy. n is rounded up to Align.
func Buffer(n int) []byte {
	n = RoundUp(n)
	b := make([]byte, n+Align)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (Align - 1))
	return b[skip : skip+n : skip+n]
}

// RoundUp returns the smallest multiple of Align that is not less than n.
func RoundUp[T int | int64](n T) T { return (n + Align - 1) &^ (Align - 1) }

func aligned(b []byte) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))&(Align-1) == 0
}

// CheckAligned refuses an offset or a length that is not a multiple of Align (ErrUnaligned).
func CheckAligned(what string, length int, offset int64) error {
	if offset&(Align-1) != 0 || length&(Align-1) != 0 || offset < 0 {
		return fmt.Errorf("%s %d bytes at %d: %w", what, length, offset, ErrUnaligned)
	}
	return nil
}

// directDisk is a Disk on a file descriptor opened with O_DIRECT.
type directDisk struct{ f *os.File }

// Open opens the block device or regular file at path for direct reads and writes. A block device
// is opened exclusively (O_EXCL): one that is mounted, mapped or a member of something is refused
// with EBUSY. A file must not be a symbolic link; block devices are opened through links, as stable
// ids are.
func Open(path string) (Disk, error) { return open(path, unix.O_EXCL) }

// OpenShared is Open for a device that is in use: what lies beside the data of a mapping is written
// while it is live.
func OpenShared(path string) (Disk, error) { return open(path, 0) }

func open(path string, exclusive int) (Disk, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	flags := unix.O_RDWR | unix.O_DIRECT | unix.O_CLOEXEC | unix.O_NONBLOCK
	switch mode := info.Mode(); {
	case mode&fs.ModeDevice != 0 && mode&fs.ModeCharDevice == 0:
		flags |= exclusive
	case mode.IsRegular():
		flags |= unix.O_NOFOLLOW
	default:
		return nil, fmt.Errorf("open %s: want a block device or a regular file, not %s", path,
			mode.Type())
	}
	fd, err := unix.Open(path, flags, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return &directDisk{os.NewFile(uintptr(fd), path)}, nil
}

// ReadAt reads len(p) bytes, or less with io.EOF at the end.
func (d *directDisk) ReadAt(p []byte, off int64) (int, error) {
	if err := CheckAligned("read", len(p), off); err != nil {
		return 0, err
	}
	if aligned(p) {
		return d.f.ReadAt(p, off)
	}
	b := Buffer(len(p))
	n, err := d.f.ReadAt(b, off)
	return copy(p, b[:n]), err
}

// WriteAt writes all of p.
func (d *directDisk) WriteAt(p []byte, off int64) (int, error) {
	if err := CheckAligned("write", len(p), off); err != nil {
		return 0, err
	}
	if !aligned(p) {
		b := Buffer(len(p))
		copy(b, p)
		p = b
	}
	return d.f.WriteAt(p, off)
}

// Sync flushes the disk.
func (d *directDisk) Sync() error { return d.f.Sync() }

// Size seeks, which works for both devices and files.
func (d *directDisk) Size() (int64, error) {
	n, err := unix.Seek(int(d.f.Fd()), 0, io.SeekEnd)
	if err != nil {
		return 0, fmt.Errorf("size of %s: %w", d.f.Name(), err)
	}
	return n, nil
}

// Close closes the descriptor.
func (d *directDisk) Close() error { return d.f.Close() }

// CheckNumber refuses an open block device that has another number than that (ErrOther): its path
// led elsewhere when it was opened. Regular files and disks not opened by Open have no number and
// pass.
func CheckNumber(d Disk, number uint64) error {
	direct, ok := d.(*directDisk)
	if !ok {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(direct.f.Fd()), &st); err != nil {
		return &fs.PathError{Op: "fstat", Path: direct.f.Name(), Err: err}
	}
	if st.Mode&unix.S_IFMT == unix.S_IFBLK && st.Rdev != number {
		return fmt.Errorf("%s: %w: expected %d:%d, found %d:%d", direct.f.Name(), ErrOther,
			unix.Major(number), unix.Minor(number), unix.Major(st.Rdev), unix.Minor(st.Rdev))
	}
	return nil
}

// Number is the device number of the block device at path, as the kernel makes it (unix.Mkdev).
func Number(path string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return 0, fmt.Errorf("%s: not a block device", path)
	}
	return st.Rdev, nil
}
