package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrOnDisk matches the error of RequireMemory for a path on a disk.
var ErrOnDisk = errors.New("not on tmpfs or ramfs")

// Write puts data into the file at path with exactly mode, whatever the umask,
// replacing what was there. The directory must exist. On error the old file
// is as it was and no temporary file is left.
func Write(path string, data []byte, mode fs.FileMode) error {
	return place(path, data, mode, os.Rename)
}

// Create is Write for a file that must not exist yet; else the error matches
// fs.ErrExist and nothing has changed.
func Create(path string, data []byte, mode fs.FileMode) error {
	return place(path, data, mode, func(tmp, path string) error {
		// link(2), unlike rename(2), refuses an existing name.
		if err := os.Link(tmp, path); err != nil {
			return err
		}
		return os.Remove(tmp)
	})
}

func place(path string, data []byte, mode fs.FileMode,
	move func(tmp, path string) error) (err error) {
	dir := filepath.Dir(path)
	tmp, err := os.CreateTemp(dir, "."+filepath.Base(path)+".tmp-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("write %s: %w", path, err)
			os.Remove(tmp.Name())
		}
	}()
	if err := fill(tmp, data, mode); err != nil {
		return err
	}
	if err := move(tmp.Name(), path); err != nil {
		return err
	}
	return syncDir(dir)
}

// fill writes f to stable storage and closes it.
func fill(f *os.File, data []byte, mode fs.FileMode) error {
	_, err := f.Write(data)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// syncDir makes a rename in dir survive a power cut.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// RequireMemory returns nil when path, or the nearest of its parents that
// exists, is on tmpfs or ramfs. Else the error matches ErrOnDisk and names the
// path. A link in the path is followed: what counts is where the bytes go.
func RequireMemory(path string) error {
	for at := filepath.Clean(path); ; at = filepath.Dir(at) {
		var st unix.Statfs_t
		err := unix.Statfs(at, &st)
		if errors.Is(err, fs.ErrNotExist) && at != filepath.Dir(at) {
			continue
		}
		if err != nil {
			return fmt.Errorf("find the file system of %s: %w", path, err)
		}
		if st.Type == unix.TMPFS_MAGIC || st.Type == unix.RAMFS_MAGIC {
			return nil
		}
		return fmt.Errorf("%s is %w", path, ErrOnDisk)
	}
}
