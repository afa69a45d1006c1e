// Command image builds the container images of Kubeveil, without a container engine. The product's, kubeveil, holds
// the programs and the reference CNI plugins, static and stripped, and nothing else, no shell either. kubeveil-csi holds the CSI
// driver, its side-cars and Debian's tools of ext4 and xfs; kubeveil-tools what the suites and veilctl run in pods of their own.
// The same sources and Go version, and of the tools the same release of Debian, give the same bytes.
//
// Usage:
//
//	go run ./hack/image [-image kubeveil] [-arch amd64] [-tag localhost/kubeveil:dev] [-version V] [-out out/images/kubeveil.tar]
//
// The result is an OCI image layout in a tar archive, which these read:
//
//	ctr -n k8s.io images import kubeveil.tar
//	skopeo copy oci-archive:kubeveil.tar docker://registry.example/kubeveil:dev
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	image := flag.String("image", recipes[0].name, "which `image`: kubeveil, kubeveil-csi or kubeveil-tools")
	arch := flag.String("arch", runtime.GOARCH, "`architecture` as Go names it")
	tag := flag.String("tag", "", "`name` under which a runtime that imports the image finds it (default localhost/IMAGE:dev)")
	out := flag.String("out", "", "`file` to write (default out/images/IMAGE.tar)")
	version := flag.String("version", "", "`version` of the programs (default: what hack/version.sh says)")
	flag.Parse()
	if *tag == "" {
		*tag = "localhost/" + *image + ":dev"
	}
	if *out == "" {
		*out = "out/images/" + *image + ".tar"
	}
	digest, err := run(ctx, *image, *arch, *tag, *version, *out)
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
	fmt.Printf("%s %s in %s\n", *tag, digest, *out)
}

func run(ctx context.Context, image, arch, tag, version, out string) (digest string, err error) {
	r, err := named(image)
	if err != nil {
		return "", err
	}
	if version == "" {
		said, err := exec.CommandContext(ctx, "hack/version.sh").Output()
		if err != nil {
			return "", fmt.Errorf("hack/version.sh: %w", err)
		}
		version = strings.TrimSpace(string(said))
	}
	root := filepath.Join(filepath.Dir(out), "root-"+arch)
	if err := compile(ctx, r, arch, version, root); err != nil {
		return "", err
	}
	files, err := readFiles(r, root)
	if err != nil {
		return "", err
	}
	if err := addHost(ctx, files, arch, r.host); err != nil {
		return "", err
	}
	if err := addHostFiles(files, r); err != nil {
		return "", err
	}
	img, err := newImage(r, arch, version, files)
	if err != nil {
		return "", err
	}
	hash, err := img.Digest()
	if err != nil {
		return "", fmt.Errorf("digest of the image: %w", err)
	}
	return hash.String(), writeArchive(out, tag, img)
}

// compile builds the programs into folders below root. What is there and up to date is not linked again.
func compile(ctx context.Context, r recipe, arch, version, root string) error {
	root, err := filepath.Abs(root)
	if err != nil {
		return err
	}
	for dir, packages := range r.programs {
		if err := build(ctx, ".", arch, filepath.Join(root, dir), module+"pkg/version.stamped="+version, packages); err != nil {
			return err
		}
	}
	for _, r := range r.released {
		for _, p := range r.packages {
			c := exec.CommandContext(ctx, "go", "list", "-f", "{{.Module.Version}}", p)
			c.Dir, c.Stderr = r.in, os.Stderr
			said, err := c.Output()
			if err != nil {
				return fmt.Errorf("version of %s: %w", p, err)
			}
			if err := build(ctx, r.in, arch, filepath.Join(root, r.dir), "main.version="+strings.TrimSpace(string(said)), []string{p}); err != nil {
				return err
			}
		}
	}
	return nil
}

// build builds packages in a module into a folder; stamp is a variable and its value.
func build(ctx context.Context, in, arch, dir, stamp string, packages []string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	args := append([]string{"build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -X " + stamp, "-o", dir + "/"}, packages...)
	c := exec.CommandContext(ctx, "go", args...)
	c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOFLAGS=-mod=readonly")
	c.Dir, c.Stdout, c.Stderr = in, os.Stderr, os.Stderr
	if err := c.Run(); err != nil {
		return fmt.Errorf("build %v: %w", packages, err)
	}
	return nil
}

// readFiles reads the compiled programs and nothing else that may lie there.
func readFiles(r recipe, root string) (map[string][]byte, error) {
	files := map[string][]byte{}
	read := func(dir string, packages []string) error {
		for _, p := range packages {
			name := filepath.Join(dir, filepath.Base(p))
			b, err := os.ReadFile(filepath.Join(root, name))
			if err != nil {
				return err
			}
			if err := requireStatic(name, b); err != nil {
				return err
			}
			files[name] = b
		}
		return nil
	}
	for dir, packages := range r.programs {
		if err := read(dir, packages); err != nil {
			return nil, err
		}
	}
	for _, r := range r.released {
		if err := read(r.dir, r.packages); err != nil {
			return nil, err
		}
	}
	return files, nil
}
