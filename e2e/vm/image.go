package vm

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/kubeveil/kubeveil/e2e/vm/image"
)

// ToolImage is the image of the tests' pods. It contains veil-tools.
const ToolImage = image.Registry + "/veil-tools:1"

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
	tools := filepath.Join(c.root, toolsImage)
	if _, err := os.Stat(tools); err == nil {
		c.images = append(c.images, tools)
	}
	c.images = append(c.images, c.opts.Images...)
	return c.writeImages(ctx, c.images[0])
}

// writeImages writes the lab's own images to one archive: sandbox, veil-tools, kube-proxy and
// CoreDNS.
func (c *Cluster) writeImages(ctx context.Context, path string) error {
	tool := map[string]string{"veil-tools": c.program("veil-tools")}
	proxy, err := image.KubeProxy(ctx, c.program("kube-proxy"), c.opts.proxyMode())
	if err != nil {
		return err
	}

	return image.WriteArchive(path,
		image.Named{Ref: image.Pause, Files: tool, Entry: []string{"/veil-tools", "pause"}},
		image.Named{Ref: ToolImage, Files: tool, Entry: []string{"/veil-tools"}},
		image.Named{Ref: image.Registry + "/kube-proxy:" + c.version, Files: proxy,
			Entry: []string{"/usr/local/bin/kube-proxy"}},
		// kubeadm derives this name from imageRepository.
		image.Named{Ref: image.Registry + "/coredns:" + c.dnsTag,
			Files: map[string]string{"coredns": c.program("coredns")}, Entry: []string{"/coredns"}})
}

// makeShared makes the shared disk.
func (c *Cluster) makeShared(ctx context.Context) error {
	s := image.Store{Dir: c.Dir, Program: c.program, Host: c.Lab.Bridge().Host, Images: c.images}
	if err := s.Make(ctx); err != nil {
		return err
	}
	c.step("images are stored")
	return nil
}
