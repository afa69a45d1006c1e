package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/spf13/pflag"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
)

// someFiles returns files that stand in for the programs, whose content does not matter in these
// tests.
func someFiles() map[string][]byte {
	files := map[string][]byte{}
	for dir, packages := range recipes[0].programs {
		for _, p := range packages {
			name := filepath.Join(dir, filepath.Base(p))
			files[name] = bytes.Repeat([]byte(name), 1000)
		}
	}
	return files
}

func TestSameFilesSameBytes(t *testing.T) {
	var archives [2][]byte
	for i := range archives {
		img, err := newImage(recipes[0], "amd64", "v0.1.0", someFiles())
		errtest.Must(t, err)
		path := filepath.Join(t.TempDir(), "image.tar")
		_, err = writeArchive(path, "localhost/kubeveil:test", []v1.Image{img})
		errtest.Must(t, err)
		if archives[i], err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("two builds from the same files differ")
	}
}

// The layer has the right entries, with the right names, owners, times and modes.
func TestLayer(t *testing.T) {
	files := someFiles()
	layer, err := newLayer(files)
	errtest.Must(t, err)

	r, err := layer.Uncompressed()
	errtest.Must(t, err)
	defer r.Close()

	var names, regular []string
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		errtest.Must(t, err)

		names = append(names, strings.TrimSuffix(h.Name, "/"))
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.Gname != "" || !h.ModTime.Equal(epoch) {
			t.Errorf("%s: owner %d:%d %q:%q, time %v", h.Name, h.Uid, h.Gid, h.Uname, h.Gname,
				h.ModTime)
		}

		switch h.Typeflag {
		case tar.TypeReg:
			regular = append(regular, h.Name)
			if b, _ := io.ReadAll(tr); h.Mode != 0o755 || !bytes.Equal(b, files[h.Name]) {
				t.Errorf("%s: mode %o, %d bytes", h.Name, h.Mode, len(b))
			}
		case tar.TypeSymlink:
			if h.Name != "var/run" || h.Linkname != "/run" {
				t.Errorf("link %s to %s", h.Name, h.Linkname)
			}
		case tar.TypeDir:
		default:
			t.Errorf("%s is of type %c", h.Name, h.Typeflag)
		}
	}

	if !slices.IsSorted(names) {
		t.Errorf("not sorted: %v", names)
	}
	if want := slices.Sorted(maps.Keys(files)); !slices.Equal(slices.Sorted(slices.Values(regular)),
		want) {
		t.Errorf("files %v, want %v", regular, want)
	}
}

// The archive is an OCI layout that another library can read. It has the annotation from which
// containerd takes the name of the image.
func TestArchiveIsALayout(t *testing.T) {
	img, err := newImage(recipes[0], "arm64", "v0.1.0", someFiles())
	errtest.Must(t, err)
	dir := t.TempDir()
	_, err = writeArchive(filepath.Join(dir, "image.tar"), "localhost/kubeveil:test",
		[]v1.Image{img})
	errtest.Must(t, err)

	unpack(t, filepath.Join(dir, "image.tar"), filepath.Join(dir, "layout"))
	index, err := layout.ImageIndexFromPath(filepath.Join(dir, "layout"))
	errtest.Must(t, err)
	m, err := index.IndexManifest()
	errtest.Must(t, err)
	if len(m.Manifests) != 1 ||
		m.Manifests[0].Annotations["io.containerd.image.name"] != "localhost/kubeveil:test" ||
		m.Manifests[0].Platform.Architecture != "arm64" {
		t.Fatalf("index: %+v", m)
	}

	got, err := index.Image(m.Manifests[0].Digest)
	errtest.Must(t, err)
	config, err := got.ConfigFile()
	errtest.Must(t, err)
	if len(config.RootFS.DiffIDs) != 1 || config.Config.Entrypoint[0] != "/usr/local/bin/veild" ||
		config.OS != "linux" ||
		config.Config.Labels["org.opencontainers.image.version"] != "v0.1.0" {
		t.Errorf("configuration: %+v", config)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("left beside the archive: %v, %v", entries, err)
	}
}

// Two architectures make one index, and the digest is the digest of that index.
func TestIndexOfTwoArchitectures(t *testing.T) {
	var images []v1.Image
	for _, arch := range []string{"amd64", "arm64"} {
		img, err := newImage(recipes[0], arch, "v0.1.0", someFiles())
		errtest.Must(t, err)
		images = append(images, img)
	}
	dir := t.TempDir()
	digest, err := writeArchive(filepath.Join(dir, "image.tar"), "localhost/kubeveil:test", images)
	errtest.Must(t, err)

	unpack(t, filepath.Join(dir, "image.tar"), filepath.Join(dir, "layout"))
	top, err := layout.ImageIndexFromPath(filepath.Join(dir, "layout"))
	errtest.Must(t, err)
	m, err := top.IndexManifest()
	errtest.Must(t, err)
	if len(m.Manifests) != 1 || m.Manifests[0].Digest != digest ||
		m.Manifests[0].MediaType != types.OCIImageIndex ||
		m.Manifests[0].Annotations["io.containerd.image.name"] != "localhost/kubeveil:test" {
		t.Fatalf("index.json: %+v, want one index %s", m, digest)
	}

	index, err := top.ImageIndex(digest)
	errtest.Must(t, err)
	m, err = index.IndexManifest()
	errtest.Must(t, err)
	for i, arch := range []string{"amd64", "arm64"} {
		img, err := index.Image(m.Manifests[i].Digest)
		errtest.Must(t, err)
		config, err := img.ConfigFile()
		errtest.Must(t, err)
		if m.Manifests[i].Platform.Architecture != arch || config.Architecture != arch {
			t.Errorf("image %d: %+v, %s, want %s", i, m.Manifests[i].Platform, config.Architecture,
				arch)
		}
	}
}

func unpack(t *testing.T, archive, dir string) {
	t.Helper()
	f, err := os.Open(archive)
	errtest.Must(t, err)
	defer f.Close()

	for tr := tar.NewReader(f); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		errtest.Must(t, err)

		path := filepath.Join(dir, h.Name)
		if h.Typeflag == tar.TypeDir {
			err = os.MkdirAll(path, 0o755)
		} else {
			var b []byte
			if b, err = io.ReadAll(tr); err == nil {
				err = os.MkdirAll(filepath.Dir(path), 0o755)
			}
			if err == nil {
				err = os.WriteFile(path, b, 0o644)
			}
		}

		errtest.Must(t, err)
	}
}

func TestDynamicProgramIsRefused(t *testing.T) {
	// /bin/ls stands in for any dynamically linked program.
	b := filetest.Read(t, "/bin/ls")
	if err := requireStatic("ls", b); err == nil ||
		!strings.Contains(err.Error(), "CGO_ENABLED=0") {
		t.Errorf("a dynamic program: %v", err)
	}
	if err := requireStatic("text", []byte("#!/bin/sh")); err == nil {
		t.Error("a script passed for a program")
	}
}

// The description has each program of a recipe, at its path in the image, and each package.
func TestDescription(t *testing.T) {
	r, err := named("kubeveil-csi")
	errtest.Must(t, err)
	c, err := contentOf(r, "arm64", "root")
	errtest.Must(t, err)
	if !slices.Contains(c.Programs, "usr/local/bin/veil-csi") ||
		!slices.Contains(c.Programs, "usr/local/bin/csi-resizer") ||
		len(c.Programs) != 5 || len(c.Debian) != len(r.debian) {
		t.Errorf("%+v", c)
	}

	path := filepath.Join(t.TempDir(), "description.json")
	errtest.Must(t, description{}.write(""), description{Digest: "sha256:ab",
		Images: map[string]content{"arm64": c}}.write(path))
	if text := string(filetest.Read(t, path)); !strings.Contains(text, `"sha256:ab"`) ||
		!strings.Contains(text, c.Debian[0].SHA256) {
		t.Error(text)
	}
}

func TestUnknownImageIsRefused(t *testing.T) {
	if _, err := named("kubeveil-tool"); err == nil ||
		!strings.Contains(err.Error(), "kubeveil-tools") {
		t.Errorf("an unknown image: %v", err)
	}
}

func TestProgramsNameTheToolsOfTheirRelease(t *testing.T) {
	for tag, want := range map[string]string{
		"localhost/kubeveil:dev":               "localhost/kubeveil-tools:dev",
		"registry.example:5000/a/kubeveil:v1":  "registry.example:5000/a/kubeveil-tools:v1",
		"registry.example/kubeveil:v0.1.0-rc1": "registry.example/kubeveil-tools:v0.1.0-rc1",
	} {
		if got, err := toolsBeside(tag); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", tag, got, err, want)
		}
	}
	if _, err := toolsBeside("Registry/kubeveil:v 1"); err == nil ||
		!strings.Contains(err.Error(), "--tag") {
		t.Errorf("a tag that is none: %v", err)
	}
}

func TestCommandLine(t *testing.T) {
	var help bytes.Buffer
	if _, err := read([]string{"-h"}, &help); !errors.Is(err, pflag.ErrHelp) ||
		!strings.Contains(help.String(), "Examples:") ||
		!strings.Contains(help.String(), "--arch") {
		t.Errorf("%v:\n%s", err, &help)
	}
	o, err := read([]string{"--image", "kubeveil-tools"}, io.Discard)
	if err != nil || o.tag != "localhost/kubeveil-tools:dev" ||
		o.out != "out/images/kubeveil-tools.tar" {
		t.Errorf("%+v, %v", o, err)
	}
	for args, want := range map[string]string{"--image kubeveil-tool": "kubeveil-tools",
		"kubeveil-tools": `unexpected argument "kubeveil-tools"`,
		"--images":       "unknown flag: --images", "-image x": "-image: write --image"} {
		if _, err := read(strings.Fields(args), io.Discard); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", args, err)
		}
	}
}
