package backend

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/csi/internal/blk"
	"github.com/kubeveil/kubeveil/internal/atomicfile"
)

// Files keeps each volume in a file <volume>.img of Dir, attached as a loop device with direct I/O.
// On a file system that shares blocks (xfs with reflink, btrfs), a copy is immediate and takes
// space only when either side is written. So Files counts promised space, not occupied blocks: the
// sizes of all files together stay below the file system's size less the reserve. Only with Sparse
// can the file system fill up later.
type Files struct {
	// Dir is a folder on ext4, xfs or btrfs. It must exist.
	Dir string
	// Reserve is the percentage of the file system that volumes never take, because the folder may
	// be on the node's root disk.
	Reserve int
	// Sparse allocates blocks only when they are written. A full file system then causes I/O errors
	// in pods, so by default all blocks are allocated at once.
	Sparse bool

	// admitting is locked from the check of the free space until the space is taken, so that two
	// volumes do not get the same space.
	admitting sync.Mutex
}

// FileSuffix is the suffix of the names of volumes' files.
const FileSuffix = ".img"

func (f *Files) path(volume string) string { return filepath.Join(f.Dir, volume+FileSuffix) }

// Provision implements Backend.
func (f *Files) Provision(_ context.Context, volume string, size int64) error {
	if err := CheckName(volume); err != nil {
		return err
	}
	file, err := os.OpenFile(f.path(volume), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := f.grow(file, size); err != nil {
		if info, gone := file.Stat(); gone == nil && info.Size() == 0 {
			err = errors.Join(err, os.Remove(file.Name()))
		}
		return fmt.Errorf("provision %s: %w", volume, err)
	}
	return atomicfile.Settle(f.Dir)
}

// grow extends the file to at least size bytes. The new bytes read as zero.
func (f *Files) grow(file *os.File, size int64) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is %s, not a regular file", file.Name(), info.Mode().Type())
	}

	f.admitting.Lock()
	defer f.admitting.Unlock()
	// Check the space first: fallocate takes all free space before it fails, so other users of the
	// file system would find it full.
	if err := f.admit(size - info.Size()); err != nil {
		return err
	}

	if !f.Sparse {
		err = unix.Fallocate(int(file.Fd()), 0, 0, size)
	} else if info.Size() < size {
		err = file.Truncate(size)
	}

	if errors.Is(err, unix.ENOSPC) {
		// The kernel does not free what fallocate allocated before it failed.
		if err := file.Truncate(info.Size()); err != nil {
			return err
		}
		return fmt.Errorf("%w: %d bytes in %s: %w", ErrFull, size, f.Dir, err)
	}

	if err != nil {
		return err
	}
	return file.Sync()
}

// Attach implements Backend.
func (f *Files) Attach(_ context.Context, volume string) (Device, error) {
	if err := CheckName(volume); err != nil {
		return Device{}, err
	}
	var st unix.Stat_t
	if err := unix.Lstat(f.path(volume), &st); errors.Is(err, fs.ErrNotExist) {
		return Device{}, fmt.Errorf("volume %s: %w: no file %s", volume, ErrMissing, f.path(volume))
	} else if err != nil {
		return Device{}, &fs.PathError{Op: "lstat", Path: f.path(volume), Err: err}
	}
	loop, err := blk.AttachLoop(f.path(volume))
	if err != nil {
		return Device{}, err
	}
	return Device{Path: loop.Path, Number: loop.Number, ID: fmt.Sprintf("file:%d", st.Ino)}, nil
}

// Detach implements Backend.
func (f *Files) Detach(_ context.Context, volume string) error {
	if err := CheckName(volume); err != nil {
		return err
	}
	loops, err := blk.FindLoops(f.path(volume))
	for _, l := range loops {
		err = errors.Join(err, l.Detach())
	}
	return err
}

// Expand implements Backend.
func (f *Files) Expand(_ context.Context, volume string, size int64) error {
	if err := CheckName(volume); err != nil {
		return err
	}
	file, err := os.OpenFile(f.path(volume), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("volume %s: %w: %w", volume, ErrMissing, err)
	}
	if err != nil {
		return err
	}
	defer file.Close()
	if err := f.grow(file, size); err != nil {
		return fmt.Errorf("expand %s: %w", volume, err)
	}
	loops, err := blk.FindLoops(f.path(volume))
	for _, l := range loops {
		err = errors.Join(err, l.Resize())
	}
	return err
}

// Delete implements Backend.
func (f *Files) Delete(ctx context.Context, volume string) error {
	if err := f.Detach(ctx, volume); err != nil {
		return err
	}
	return errors.Join(atomicfile.Remove(f.unfinished(volume)), atomicfile.Remove(f.path(volume)))
}

// Destroys implements Backend. It returns true, because Delete removes the file.
func (f *Files) Destroys() bool { return true }

// Capacity implements Backend.
func (f *Files) Capacity(context.Context) (int64, error) {
	room, err := f.room()
	return max(room, 0), err
}

// admit returns ErrFull if more bytes are not free, or are promised to other volumes.
func (f *Files) admit(more int64) error {
	if more <= 0 {
		return nil
	}
	room, err := f.room()
	if err == nil && more > room {
		err = fmt.Errorf("%w: %d bytes more in %s, where %d are free, without the space of "+
			"other volumes and the reserve of %d %%",
			ErrFull, more, f.Dir, max(room, 0), f.Reserve)
	}
	return err
}

// room returns the free, unpromised space in bytes. It may be negative.
func (f *Files) room() (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(f.Dir, &st); err != nil {
		return 0, &fs.PathError{Op: "statfs", Path: f.Dir, Err: err}
	}
	const percent = 100
	total := int64(st.Blocks) * st.Frsize
	reserve := total / percent * int64(f.Reserve)
	free := int64(st.Bavail)*st.Frsize - reserve
	if f.Sparse {
		return free, nil
	}
	promised, err := f.promised()
	return min(free, total-reserve-promised), err
}

// promised returns the size in bytes that all volumes have once every block is written.
func (f *Files) promised() (sum int64, err error) {
	entries, err := os.ReadDir(f.Dir)
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // Deleted in the meantime.
		}
		if err != nil {
			return 0, err
		}
		if info.Mode().IsRegular() {
			sum += info.Size()
		}
	}
	return sum, nil
}
