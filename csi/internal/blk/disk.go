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

// Align is the unit in bytes of offsets and lengths of reads and writes. Direct I/O of this unit
// works on every disk.
const Align = 4096

// ErrUnaligned means that the offset or length of a read or write is not a multiple of Align.
var ErrUnaligned = errors.New("not a multiple of 4096 bytes")

// ErrOther means that a path leads to another device than expected.
var ErrOther = errors.New("it is another device now")

// Disk is a block device, or a file in its place. ReadAt and WriteAt need offsets and lengths that
// are multiples of Align. Their buffers need not be aligned. ReadAt, WriteAt and Sync may be called
// from several goroutines.
type Disk interface {
	io.ReaderAt
	io.WriterAt
	// Sync returns once all earlier writes are on stable storage.
	Sync() error
	// Size returns the present size in bytes.
	Size() (int64, error)
	Close() error
}

// Buffer returns n zero bytes that direct I/O can use without a copy. It rounds n up to a multiple
// of Align.
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

// CheckAligned returns ErrUnaligned if offset or length is not a multiple of Align. what is the
// verb of the error.
func CheckAligned(what string, length int, offset int64) error {
	if offset&(Align-1) != 0 || length&(Align-1) != 0 || offset < 0 {
		return fmt.Errorf("%s %d bytes at %d: %w", what, length, offset, ErrUnaligned)
	}
	return nil
}

// directDisk is a Disk on a file descriptor opened with O_DIRECT.
type directDisk struct{ f *os.File }

// Open opens the block device or regular file at path for direct reads and writes. It opens a block
// device exclusively (O_EXCL), and returns EBUSY if the device is mounted, mapped or in an array.
// The path of a block device may be a symbolic link, because stable ids are links. The path of a
// file must not be a link.
func Open(path string) (Disk, error) { return open(path, unix.O_EXCL) }

// OpenShared is like Open, but also opens a device that is in use. It serves to write the record of
// a volume while its mapping is live.
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

// ReadAt reads len(p) bytes, or fewer with io.EOF at the end of the disk.
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

// Size seeks to the end, which works for devices and for files.
func (d *directDisk) Size() (int64, error) {
	n, err := unix.Seek(int(d.f.Fd()), 0, io.SeekEnd)
	if err != nil {
		return 0, fmt.Errorf("size of %s: %w", d.f.Name(), err)
	}
	return n, nil
}

// Close closes the descriptor.
func (d *directDisk) Close() error { return d.f.Close() }

// CheckNumber returns ErrOther if the open block device has another number, because its path led to
// another device when it was opened. It accepts regular files, and disks that this package did not
// open.
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

// Number returns the device number of the block device at path, in the form of unix.Mkdev.
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
