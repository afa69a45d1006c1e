package blk

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Reader is a block device that is open for reading. ReadAt needs the same alignment as
// Disk.ReadAt.
type Reader interface {
	io.ReaderAt
	io.Closer
}

// OpenNumber opens the block device of that number for direct reads, even if other processes use
// it. It does not open the device for writing, because udev would then probe it on close.
func OpenNumber(number uint64) (Reader, error) {
	major, minor := unix.Major(number), unix.Minor(number)
	text, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/uevent", major, minor))
	if err != nil {
		return nil, fmt.Errorf("block device %d:%d: %w", major, minor, err)
	}

	for line := range strings.Lines(string(text)) {
		name, ok := strings.CutPrefix(strings.TrimSpace(line), "DEVNAME=")
		if !ok {
			continue
		}
		path := filepath.Join("/dev", name)
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return nil, fmt.Errorf("open %s: %w", path, err)
		}
		d := &directDisk{os.NewFile(uintptr(fd), path)}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return nil, errors.Join(err, d.Close())
		}
		if st.Rdev != number {
			return nil, errors.Join(fmt.Errorf("open %s: %w", path, ErrOther), d.Close())
		}
		return d, nil
	}

	return nil, fmt.Errorf("block device %d:%d: sysfs has no name for it", major, minor)
}
