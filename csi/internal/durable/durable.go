// Package durable puts small files on a disk so that a reader, a crash or a power cut finds the old
// content or the new one, and never a part of either. Start reading at Write.
package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// unfinished begins the names of files that have their own only when they are complete.
const unfinished = ".new-"

// Write replaces the file at path, which need not exist, with data and mode 0600. Its folder must
// exist. On error the former content is there; on success the new one survives a power cut.
func Write(path string, data []byte) error { return put(path, data, os.Rename) }

// Create is Write for a file that must not exist: the error matches fs.ErrExist when it does, and
// nothing has changed.
func Create(path string, data []byte) error {
	return put(path, data, func(from, to string) error {
		// A hard link, other than a rename, replaces nothing.
		return errors.Join(os.Link(from, to), os.Remove(from))
	})
}

func put(path string, data []byte, place func(from, to string) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), unfinished+"*") // 0600
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = place(f.Name(), path)
	}
	if err != nil {
		// Gone already when it was placed.
		if gone := os.Remove(f.Name()); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, gone)
		}
		return fmt.Errorf("write %s: %w", path, err)
	}
	return Settle(filepath.Dir(path))
}

// Remove removes the file at path, if there is one, so that it stays away after a power cut.
func Remove(path string) error {
	if err := os.Remove(path); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	return Settle(filepath.Dir(path))
}

// Settle makes what was done to the names in a folder survive a power cut.
func Settle(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Names returns the names of the files in a folder that end in suffix, without it. Other than
// filepath.Glob it returns an error when the folder cannot be read.
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

// Sweep removes what a process left in a folder that died in Write or Create. No other process may
// be in either there meanwhile.
func Sweep(dir string) error {
	names, err := Names(dir, "")
	if err != nil {
		return err
	}
	for _, name := range names {
		if strings.HasPrefix(name, unfinished) {
			err = errors.Join(err, Remove(filepath.Join(dir, name)))
		}
	}
	return err
}
