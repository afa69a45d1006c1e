package vm

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/kubeveil/kubeveil/e2e/vm/image"
)

// registry is the registry in the names of the lab's own images. It does not exist, so these images
// cannot be pulled.
const registry = "kubeveil.test"

// pauseImage is the image of sandboxes in the containerd configurations.
const pauseImage = registry + "/pause:1"

// ToolImage is the image of the tests' pods. It contains veil-tools.
const ToolImage = registry + "/veil-tools:1"

// veilImage is the archive of Kubeveil's image, which hack/image writes.
const veilImage = "out/images/kubeveil.tar"

// toolsImage is the archive of the programs that suites run in pods. hack/image writes it too.
const toolsImage = "out/images/kubeveil-tools.tar"

// collectImages collects the archives of images for the machines, and writes the archive of the
// lab's own images.
func (c *Cluster) collectImages(ctx context.Context) error {
	version, err := c.Control.Exec(ctx, c.program("kubeadm"), "version", "-o", "short")
	if err != nil {
		return err
	}
	c.version = strings.TrimSpace(string(version))
	// The first line has the form "CoreDNS-1.2.3".
	dns, err := c.Control.Exec(ctx, c.program("coredns"), "-version")
	if err != nil {
		return err
	}
	line, _, _ := strings.Cut(string(dns), "\n")
	c.dnsTag = "v" + strings.TrimPrefix(line, "CoreDNS-")
	// Kubeveil's archive is included even if ClusterConfig.NoVeil is set, because Kubeveil may be
	// installed later.
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

// writeImages writes the lab's own images to one archive: sandbox, veil-tools, kube-proxy and
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
		// kubeadm derives this name from imageRepository.
		{registry + "/coredns:" + c.dnsTag, map[string]string{"coredns": c.program("coredns")},
			[]string{"/coredns"}},
	} {
		ref, err := name.ParseReference(i.ref)
		if err != nil {
			return err
		}
		if images[ref], err = image.New(i.files, i.entry); err != nil {
			return fmt.Errorf("image %s: %w", i.ref, err)
		}
	}

	if err := tarball.MultiRefWriteToFile(path, images); err != nil {
		return fmt.Errorf("write images: %w", err)
	}
	return nil
}
