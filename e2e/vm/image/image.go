package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// New returns an image with copies of files of this machine. The keys of files are paths in the
// image. The values are paths on this machine.
func New(files map[string]string, entry []string) (v1.Image, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, dir := range []string{"tmp", "run", "var", "etc"} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/",
			Mode: 0o755}); err != nil {
			return nil, err
		}
	}

	for path, from := range files {
		if err := (File{From: from, Mode: 0o755}).add(w, path); err != nil {
			return nil, err
		}
	}

	if err := w.Close(); err != nil {
		return nil, err
	}

	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(b.Bytes())), nil
	},
		tarball.WithCompressionLevel(gzip.BestSpeed))
	if err != nil {
		return nil, err
	}

	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}

	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", "amd64"
	config.Config.Entrypoint = entry
	config.Config.Env = []string{"PATH=/usr/local/bin:/usr/sbin:/usr/bin"}
	return mutate.ConfigFile(img, config)
}

// Registry is the registry in the names of the lab's own images. It does not exist, so these images
// cannot be pulled.
const Registry = "kubeveil.test"

// Pause is the image of sandboxes in the containerd configurations.
const Pause = Registry + "/pause:1"

// Named is an image of New with its name.
type Named struct {
	Ref   string
	Files map[string]string
	Entry []string
}

// WriteArchive writes images to one archive.
func WriteArchive(path string, all ...Named) error {
	images := map[name.Reference]v1.Image{}
	for _, i := range all {
		ref, err := name.ParseReference(i.Ref)
		if err != nil {
			return err
		}
		if images[ref], err = New(i.Files, i.Entry); err != nil {
			return fmt.Errorf("image %s: %w", i.Ref, err)
		}
	}
	if err := tarball.MultiRefWriteToFile(path, images); err != nil {
		return fmt.Errorf("write images: %w", err)
	}
	return nil
}

// AddProgram adds a program of this machine, its libraries and their loader.
func AddProgram(ctx context.Context, files map[string]string, program string) error {
	path, err := exec.LookPath(program)
	if err != nil {
		return err
	}
	files["usr/sbin/"+program] = path
	return AddLibraries(ctx, files, path)
}

// AddLibraries adds the libraries of programs and libraries of this machine, and their loader.
func AddLibraries(ctx context.Context, files map[string]string, paths ...string) error {
	out, err := exec.CommandContext(ctx, "ldd", paths...).Output()
	if err != nil {
		return fmt.Errorf("libraries of %s: %w", strings.Join(paths, " "), err)
	}
	for _, word := range strings.Fields(string(out)) {
		// If ldd has several arguments, a line "PATH:" precedes the libraries of each.
		if !filepath.IsAbs(word) || strings.HasSuffix(word, ":") {
			continue
		}
		if _, err := os.Stat(word); err != nil {
			return err
		}
		files[strings.TrimPrefix(word, "/")] = word
	}
	return nil
}
