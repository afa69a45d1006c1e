package image

import (
	"archive/tar"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"
)

// File is one of a seed: its content, where on this machine it is copied from, or where it is a
// symbolic link to.
type File struct {
	Mode    int64
	Content string
	From    string
	Link    string
}

// Seed has files by path on the machine.
type Seed map[string]File

// Write makes the tar. Its blocks of 512 bytes are the sectors of a disk.
func (s Seed) Write(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	w := tar.NewWriter(f)
	names := make([]string, 0, len(s))
	for name := range s {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		if err := s[name].add(w, strings.TrimPrefix(filepath.Clean(name), "/")); err != nil {
			return fmt.Errorf("seed %s: %w", name, err)
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return f.Close()
}

func (e File) add(w *tar.Writer, name string) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: e.Mode, Size: int64(len(e.Content))}
	if h.Mode == 0 {
		h.Mode = 0o644
	}

	if e.Link != "" {
		h.Typeflag, h.Linkname = tar.TypeSymlink, e.Link
		return w.WriteHeader(h)
	}

	if e.From == "" {
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		_, err := io.WriteString(w, e.Content)
		return err
	}

	f, err := os.Open(e.From)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}

	h.Size = info.Size()
	if e.Mode == 0 {
		h.Mode = int64(info.Mode().Perm())
	}
	if err := w.WriteHeader(h); err != nil {
		return err
	}

	_, err = io.Copy(w, f)
	return err
}
