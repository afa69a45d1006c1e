package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrOnDisk matches the error of RequireMemory for a path on a disk.
var ErrOnDisk = errors.New("not on tmpfs or ramfs")

// unfinished is part of the name of a temporary file, which consists of a dot, the name of the
// file, unfinished and a random number.
const unfinished = ".tmp-"

// Write replaces the content of the file at path with data. The file gets exactly mode, regardless
// of the umask. The directory must exist. Unless the error comes from the final sync of the
// directory, the old file is unchanged after an error. No temporary file is left.
func Write(path string, data []byte, mode fs.FileMode) error {
	return place(path, data, mode, os.Rename)
}

// Create is like Write, but the file must not exist. If it exists, the error matches fs.ErrExist
// and the file is not changed.
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
	tmp, err := os.CreateTemp(dir, "."+filepath.Base(path)+unfinished+"*")
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
	return Settle(dir)
}

// fill writes data to f, sets its mode, syncs it and closes it.
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

// Remove removes the file at path and syncs the directory, so that the removal survives a power
// cut. A missing file is not an error.
func Remove(path string) error {
	if err := os.Remove(path); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	return Settle(filepath.Dir(path))
}

// Names returns the names of the files in dir that end in suffix, without suffix. Unlike
// filepath.Glob, it returns an error when dir cannot be read.
func Names(dir, suffix string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), suffix); ok {
			out = append(out, name)
		}
	}
	return out, nil
}

// Sweep removes the temporary files that processes left in dir when they died in Write or Create.
// No process may call Write or Create in dir during Sweep.
func Sweep(dir string) error {
	names, err := Names(dir, "")
	if err != nil {
		return err
	}
	for _, name := range names {
		if isUnfinished(name) {
			err = errors.Join(err, Remove(filepath.Join(dir, name)))
		}
	}
	return err
}

func isUnfinished(name string) bool {
	return strings.HasPrefix(name, ".") && strings.Contains(name, unfinished)
}

// Settle syncs the directory dir, so that earlier renames and removals in it survive a power cut.
func Settle(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// RequireMemory returns nil if path, or its nearest existing parent, is on tmpfs or ramfs.
// Otherwise the error matches ErrOnDisk and names the path. It follows symbolic links, because the
// place of the content counts.
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

// Lock locks the file or folder at path with flock(2) until unlock is called or the process ends.
// how is unix.LOCK_EX or unix.LOCK_SH, perhaps with unix.LOCK_NB.
func Lock(path string, how int) (unlock func(), err error) {
	d, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(d.Fd()), how); err != nil {
		d.Close()
		return nil, &fs.PathError{Op: "flock", Path: path, Err: err}
	}
	return func() { d.Close() }, nil
}
