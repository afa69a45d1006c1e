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

// File is a file of a seed. If Link is set, the file is a symbolic link to it. Otherwise, if From
// is set, the file is a copy of that file of this machine. Otherwise it has Content. If Mode is 0,
// the file has the mode of From, or 0644.
type File struct {
	Mode    int64
	Content string
	From    string
	Link    string
}

// Seed maps paths on the machine to files.
type Seed map[string]File

// Write writes the seed as a tar. Its blocks have 512 bytes, so a machine can read it as a disk.
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
