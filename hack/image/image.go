package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"debug/elf"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// epoch is the time of all files in the image and of the image itself.
var epoch = time.Unix(0, 0).UTC()

// newImage returns an image with one layer of files. The keys of files are paths without a leading
// slash. The entry point is r.entry. version is the value of the version label.
func newImage(r recipe, arch, version string, files map[string][]byte) (v1.Image, error) {
	layer, err := newLayer(files)
	if err != nil {
		return nil, err
	}

	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1),
		types.OCIConfigJSON)
	img, err = mutate.Append(img, mutate.Addendum{
		Layer: layer, MediaType: types.OCILayer,
		History: v1.History{Created: v1.Time{Time: epoch}, CreatedBy: "hack/image",
			Comment: r.comment},
	})
	if err != nil {
		return nil, fmt.Errorf("add the layer: %w", err)
	}

	config, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("configuration of the image: %w", err)
	}

	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", arch, v1.Time{Time: epoch}
	config.Config = v1.Config{
		Entrypoint: []string{r.entry},
		Env:        []string{"PATH=" + r.path},
		User:       "0:0",
		WorkingDir: "/",
		Labels: map[string]string{
			"org.opencontainers.image.title":    r.name,
			"org.opencontainers.image.version":  version,
			"org.opencontainers.image.source":   "https://github.com/kubeveil/kubeveil",
			"org.opencontainers.image.licenses": cmp.Or(r.licenses, "Apache-2.0"),
		},
	}

	return mutate.ConfigFile(img, config)
}

// newLayer returns a layer with files, the folders that contain them, and folders for the mount
// points of the manifests. For reproducible output, entries are sorted, belong to user and group 0,
// and have the time epoch.
func newLayer(files map[string][]byte) (v1.Layer, error) {
	// These folders must exist, because a runtime creates missing mount points, but not through a
	// dangling link.
	dirs := map[string]bool{"etc": true, "run": true, "tmp": true, "var": true}
	for name := range files {
		for d := path.Dir(name); d != "."; d = path.Dir(d) {
			dirs[d] = true
		}
	}
	// The link exists as on hosts, because the network namespaces of pods are recorded with paths
	// below /var/run.
	links := map[string]string{"var/run": "/run"}

	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for _, all := range []func(func(string) bool){maps.Keys(dirs), maps.Keys(files),
			maps.Keys(links)} {
			for name := range all {
				if !yield(name) {
					return
				}
			}
		}
	}) {
		h := tar.Header{Name: name, Mode: 0o755, ModTime: epoch, Format: tar.FormatUSTAR}
		switch {
		case dirs[name]:
			h.Name, h.Typeflag = name+"/", tar.TypeDir
		case links[name] != "":
			h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, links[name], 0o777
		default:
			h.Typeflag, h.Size = tar.TypeReg, int64(len(files[name]))
		}
		if err := w.WriteHeader(&h); err != nil {
			return nil, fmt.Errorf("pack %s: %w", name, err)
		}
		if _, err := w.Write(files[name]); err != nil {
			return nil, fmt.Errorf("pack %s: %w", name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("pack the layer: %w", err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(buf.Bytes())), nil
	},
		tarball.WithCompressionLevel(6), tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, fmt.Errorf("compress the layer: %w", err)
	}
	return layer, nil
}

// requireStatic returns an error if a program is linked dynamically, because the image has no
// loader for it.
func requireStatic(name string, program []byte) error {
	f, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("%s is linked dynamically: build it with CGO_ENABLED=0", name)
		}
	}
	return nil
}
