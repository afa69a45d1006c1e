package vm

import (
	"archive/tar"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"
)

// file is one of a seed: its content, where on this machine it is copied from, or where it is a
// symbolic link to.
type file struct {
	mode    int64
	content string
	from    string
	link    string
}

// seed is by path on the machine.
type seed map[string]file

// write makes the tar. Its blocks of 512 bytes are the sectors of a disk.
func (s seed) write(path string) error {
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

func (e file) add(w *tar.Writer, name string) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: e.mode, Size: int64(len(e.content))}
	if h.Mode == 0 {
		h.Mode = 0o644
	}

	if e.link != "" {
		h.Typeflag, h.Linkname = tar.TypeSymlink, e.link
		return w.WriteHeader(h)
	}

	if e.from == "" {
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		_, err := io.WriteString(w, e.content)
		return err
	}

	f, err := os.Open(e.from)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}

	h.Size = info.Size()
	if e.mode == 0 {
		h.Mode = int64(info.Mode().Perm())
	}
	if err := w.WriteHeader(h); err != nil {
		return err
	}

	_, err = io.Copy(w, f)
	return err
}
