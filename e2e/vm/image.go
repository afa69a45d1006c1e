package vm

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

// registry begins the names of the lab's own images. No such place exists: nothing can be pulled.
const registry = "kubeveil.test"

// pauseImage is the image of sandboxes in the containerd configurations.
const pauseImage = registry + "/pause:1"

// ToolImage is the image of tests' pods: veil-tools.
const ToolImage = registry + "/veil-tools:1"

// veilImage is the archive that hack/image writes.
const veilImage = "out/images/kubeveil.tar"

// toolsImage is the archive of what suites run in pods, also by hack/image.
const toolsImage = "out/images/kubeveil-tools.tar"

// collectImages writes the archives that machines are given.
func (c *Cluster) collectImages(ctx context.Context) error {
	version, err := c.Control.Exec(ctx, c.program("kubeadm"), "version", "-o", "short")
	if err != nil {
		return err
	}
	c.version = strings.TrimSpace(string(version))
	// "CoreDNS-1.2.3" is its first line.
	dns, err := c.Control.Exec(ctx, c.program("coredns"), "-version")
	if err != nil {
		return err
	}
	line, _, _ := strings.Cut(string(dns), "\n")
	c.dnsTag = "v" + strings.TrimPrefix(line, "CoreDNS-")
	// Kubeveil's also where it is left out: it may be installed later.
	c.images = []string{c.file("lab.tar"), filepath.Join(c.root, veilImage)}
	if tools := filepath.Join(c.root, toolsImage); exists(tools) {
		c.images = append(c.images, tools)
	}
	c.images = append(c.images, c.opts.Images...)
	return c.writeImages(ctx, c.images[0])
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// writeImages writes the lab's own images into one archive: sandbox, veil-tools, kube-proxy,
// CoreDNS.
func (c *Cluster) writeImages(ctx context.Context, path string) error {
	tool := map[string]string{"veil-tools": c.program("veil-tools")}
	proxy, err := c.proxyFiles(ctx)
	if err != nil {
		return err
	}

	images := map[name.Reference]v1.Image{}
	for _, i := range []struct {
		ref   string
		files map[string]string
		entry []string
	}{
		{pauseImage, tool, []string{"/veil-tools", "pause"}},
		{ToolImage, tool, []string{"/veil-tools"}},
		{registry + "/kube-proxy:" + c.version, proxy, []string{"/usr/local/bin/kube-proxy"}},
		// The name that kubeadm uses with an imageRepository of the user.
		{registry + "/coredns:" + c.dnsTag, map[string]string{"coredns": c.program("coredns")},
			[]string{"/coredns"}},
	} {
		ref, err := name.ParseReference(i.ref)
		if err != nil {
			return err
		}
		if images[ref], err = newImage(i.files, i.entry); err != nil {
			return fmt.Errorf("image %s: %w", i.ref, err)
		}
	}

	if err := tarball.MultiRefWriteToFile(path, images); err != nil {
		return fmt.Errorf("write images: %w", err)
	}
	return nil
}

// newImage returns an image with copies of this machine's files, by path in the image.
func newImage(files map[string]string, entry []string) (v1.Image, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, dir := range []string{"tmp", "run", "var", "etc"} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/",
			Mode: 0o755}); err != nil {
			return nil, err
		}
	}

	for path, from := range files {
		if err := (file{from: from, mode: 0o755}).add(w, path); err != nil {
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

// addProgram adds a program of this machine, its libraries and their loader.
func addProgram(ctx context.Context, files map[string]string, program string) error {
	path, err := exec.LookPath(program)
	if err != nil {
		return err
	}
	files["usr/sbin/"+program] = path
	return addLibraries(ctx, files, path)
}

// addLibraries adds the libraries of programs and libraries of this machine, and their loader.
func addLibraries(ctx context.Context, files map[string]string, paths ...string) error {
	out, err := exec.CommandContext(ctx, "ldd", paths...).Output()
	if err != nil {
		return fmt.Errorf("libraries of %s: %w", strings.Join(paths, " "), err)
	}
	for _, word := range strings.Fields(string(out)) {
		// "PATH:" is the headline of one of several.
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
