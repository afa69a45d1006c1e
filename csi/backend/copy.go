package backend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/atomicfile"
)

// copyChunk is the number of bytes that are copied between two checks for cancellation.
const copyChunk = 8 << 20

// unfinished returns the path of the volume's copy until the copy is complete. It cannot be the
// path of a volume, because names of volumes do not begin with a dot.
func (f *Files) unfinished(volume string) string { return filepath.Join(f.Dir, "."+volume+".copy") }

// Copy implements Backend. It shares blocks if the file system supports that. Otherwise it copies
// the data and keeps holes.
func (f *Files) Copy(ctx context.Context, dst, src string, size int64) error {
	if err := errors.Join(CheckName(dst), CheckName(src)); err != nil {
		return err
	}
	from, err := os.OpenFile(f.path(src), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("volume %s: %w: %w", src, ErrMissing, err)
	}

	if err != nil {
		return err
	}
	defer from.Close()
	temporary := f.unfinished(dst)

	// Remove the unfinished file of an interrupted copy.
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}

	to, err := os.OpenFile(temporary, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer to.Close()
	err = f.copyBytes(ctx, to, from, size)
	if err == nil {
		err = unix.Renameat2(unix.AT_FDCWD, temporary, unix.AT_FDCWD, f.path(dst),
			unix.RENAME_NOREPLACE)
		if errors.Is(err, unix.EEXIST) {
			err = ErrExists
		}
	}

	if err != nil {
		return fmt.Errorf("copy volume %s to %s: %w", src, dst,
			errors.Join(err, os.Remove(temporary)))
	}
	return atomicfile.Settle(f.Dir)
}

// copyBytes copies from to the empty file to, and syncs it to stable storage.
func (f *Files) copyBytes(ctx context.Context, to, from *os.File, size int64) error {
	info, err := from.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is %s, not a regular file", from.Name(), info.Mode().Type())
	}
	size = max(size, info.Size())
	if err := f.clone(to, from, size); err == nil {
		return f.grow(to, size)
	} else if errors.Is(err, ErrFull) {
		return err
	} else if !noClone(err) {
		return fmt.Errorf("clone %s: %w", from.Name(), err)
	}
	if err := f.grow(to, size); err != nil {
		return err
	}
	if err := copyData(ctx, to, from, info.Size()); err != nil {
		return err
	}
	return to.Sync()
}

// clone shares the blocks of from with the empty file to. It returns ErrFull unless the file system
// has space for size bytes, which to needs once no block is shared.
func (f *Files) clone(to, from *os.File, size int64) error {
	f.admitting.Lock()
	defer f.admitting.Unlock()
	if err := f.admit(size); err != nil {
		return err
	}
	return unix.IoctlFileClone(int(to.Fd()), int(from.Fd()))
}

// noClone reports whether err means that the file system cannot share blocks between these two
// files (ioctl_ficlone(2)).
func noClone(err error) bool {
	for _, e := range []error{unix.EOPNOTSUPP, unix.ENOTTY, unix.EXDEV, unix.EINVAL, unix.ENOSYS} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// copyData copies the written extents in the first size bytes of from to the file to, which reads
// as zero.
func copyData(ctx context.Context, to, from *os.File, size int64) error {
	for at := int64(0); at < size; {
		begin, err := unix.Seek(int(from.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // The rest is a hole.
		}
		if err != nil {
			return fmt.Errorf("seek data in %s: %w", from.Name(), err)
		}
		end, err := unix.Seek(int(from.Fd()), begin, unix.SEEK_HOLE)
		if err != nil {
			return fmt.Errorf("seek hole in %s: %w", from.Name(), err)
		}
		if err := copyRange(ctx, to, from, begin, end); err != nil {
			return err
		}
		at = end
	}
	return nil
}

func copyRange(ctx context.Context, to, from *os.File, begin, end int64) error {
	for _, file := range []*os.File{to, from} {
		if _, err := file.Seek(begin, io.SeekStart); err != nil {
			return err
		}
	}
	for at := begin; at < end; at += copyChunk {
		if err := ctx.Err(); err != nil {
			return err
		}
		// io.CopyN uses copy_file_range where possible, so the data stays in the kernel.
		if _, err := io.CopyN(to, from, min(copyChunk, end-at)); err != nil {
			return err
		}
	}
	return nil
}
