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
		if images[ref], err = image.New(i.files, i.entry); err != nil {
			return fmt.Errorf("image %s: %w", i.ref, err)
		}
	}

	if err := tarball.MultiRefWriteToFile(path, images); err != nil {
		return fmt.Errorf("write images: %w", err)
	}
	return nil
}
