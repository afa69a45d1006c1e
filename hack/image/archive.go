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
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// writeArchive writes a tar archive with an OCI layout, and returns the digest of what tag refers to:
// the one image, or the index of several images for different architectures. It replaces a file at
// path as a whole.
func writeArchive(path, tag string, images []v1.Image) (digest v1.Hash, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return digest, err
	}

	dir, err := os.MkdirTemp(filepath.Dir(path), ".layout-")
	if err != nil {
		return digest, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if digest, err = writeLayout(dir, tag, images); err != nil {
		return digest, fmt.Errorf("write the layout: %w", err)
	}

	tmp := path + ".new"
	if err := packDir(tmp, dir); err != nil {
		return digest, errors.Join(fmt.Errorf("pack the layout: %w", err), os.Remove(tmp))
	}

	return digest, os.Rename(tmp, path)
}

// writeLayout writes the OCI layout of the images into the empty folder dir.
func writeLayout(dir, tag string, images []v1.Image) (digest v1.Hash, err error) {
	l, err := layout.Write(dir, empty.Index)
	if err != nil {
		return digest, err
	}

	annotations := layout.WithAnnotations(map[string]string{
		// containerd reads the first annotation. The specification defines the second.
		"io.containerd.image.name":          tag,
		"org.opencontainers.image.ref.name": tag,
	})
	platforms := make([]v1.Platform, len(images))
	for i, img := range images {
		config, err := img.ConfigFile()
		if err != nil {
			return digest, err
		}
		platforms[i] = v1.Platform{OS: config.OS, Architecture: config.Architecture}
	}

	if len(images) == 1 {
		if digest, err = images[0].Digest(); err != nil {
			return digest, err
		}
		return digest, l.AppendImage(images[0], layout.WithPlatform(platforms[0]), annotations)
	}

	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for i, img := range images {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img,
			Descriptor: v1.Descriptor{Platform: &platforms[i]}})
	}
	if digest, err = index.Digest(); err != nil {
		return digest, err
	}
	return digest, l.AppendIndex(index, annotations)
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
