package main

import (
	"archive/tar"
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// writeArchive writes a tar archive with the OCI layout of the image. It replaces a file at path as
// a whole.
func writeArchive(path, tag string, img v1.Image) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}

	dir, err := os.MkdirTemp(filepath.Dir(path), ".layout-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	l, err := layout.Write(dir, empty.Index)
	if err != nil {
		return fmt.Errorf("write the layout: %w", err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		return err
	}

	err = l.AppendImage(img,
		layout.WithPlatform(v1.Platform{OS: config.OS, Architecture: config.Architecture}),
		layout.WithAnnotations(map[string]string{
			// containerd reads the first annotation. The specification defines the second.
			"io.containerd.image.name":          tag,
			"org.opencontainers.image.ref.name": tag,
		}))
	if err != nil {
		return fmt.Errorf("write the layout: %w", err)
	}

	tmp := path + ".new"
	if err := packDir(tmp, dir); err != nil {
		return errors.Join(fmt.Errorf("pack the layout: %w", err), os.Remove(tmp))
	}

	return os.Rename(tmp, path)
}

// packDir writes a tar archive of a folder. For reproducible output, entries are sorted, belong to
// user and group 0, and have the time epoch.
func packDir(path, dir string) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	buf := bufio.NewWriter(f)
	w := tar.NewWriter(buf)
	// WalkDir visits files in lexical order.
	err = filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error {
		if err != nil || at == dir {
			return err
		}
		name, err := filepath.Rel(dir, at)
		if err != nil {
			return err
		}
		return packEntry(w, at, name, d)
	})
	return errors.Join(err, w.Close(), buf.Flush())
}

func packEntry(w *tar.Writer, at, name string, d fs.DirEntry) error {
	h := tar.Header{Name: name + "/", Typeflag: tar.TypeDir, Mode: 0o755, ModTime: epoch,
		Format: tar.FormatUSTAR}
	if d.IsDir() {
		return w.WriteHeader(&h)
	}
	info, err := d.Info()
	if err != nil {
		return err
	}
	h.Name, h.Typeflag, h.Mode, h.Size = name, tar.TypeReg, 0o644, info.Size()
	if err := w.WriteHeader(&h); err != nil {
		return err
	}
	f, err := os.Open(at)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}
