// Command image builds the container image of Kubeveil, without a container engine:
// the programs and the reference CNI plugins, static and stripped, and nothing
// else, no shell either. The same sources and Go version give the same bytes.
//
// Usage:
//
//	go run ./hack/image [-arch amd64] [-tag localhost/kubeveil:dev] [-version V] [-out out/images/kubeveil.tar]
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

const (
	module  = "github.com/kubeveil/kubeveil/"
	plugins = "github.com/containernetworking/plugins/plugins/"
)

// programs are the packages whose programs the image holds, by the folder in it.
var programs = map[string][]string{
	"usr/local/bin": {module + "cmd/veild", module + "cmd/veil-wg", module + "cmd/veilctl"},
	"opt/cni/bin": {
		module + "plugins/veil",
		plugins + "ipam/host-local", plugins + "main/loopback", plugins + "meta/bandwidth", plugins + "meta/portmap",
	},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	arch := flag.String("arch", runtime.GOARCH, "`architecture` as Go names it")
	tag := flag.String("tag", "localhost/kubeveil:dev", "`name` under which a runtime that imports the image finds it")
	out := flag.String("out", "out/images/kubeveil.tar", "`file` to write")
	version := flag.String("version", "", "`version` of the programs (default: what hack/version.sh says)")
	flag.Parse()
	digest, err := run(ctx, *arch, *tag, *version, *out)
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
	fmt.Printf("%s %s in %s\n", *tag, digest, *out)
}

func run(ctx context.Context, arch, tag, version, out string) (digest string, err error) {
	if version == "" {
		said, err := exec.CommandContext(ctx, "hack/version.sh").Output()
		if err != nil {
			return "", fmt.Errorf("hack/version.sh: %w", err)
		}
		version = strings.TrimSpace(string(said))
	}
	root := filepath.Join(filepath.Dir(out), "root-"+arch)
	if err := compile(ctx, arch, version, root); err != nil {
		return "", err
	}
	files, err := readFiles(root)
	if err != nil {
		return "", err
	}
	img, err := newImage(arch, version, files)
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
func compile(ctx context.Context, arch, version, root string) error {
	for dir, packages := range programs {
		dir = filepath.Join(root, dir)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		args := append([]string{"build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -X " + module + "pkg/version.stamped=" + version, "-o", dir + "/"}, packages...)
		c := exec.CommandContext(ctx, "go", args...)
		c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOFLAGS=-mod=readonly")
		c.Stdout, c.Stderr = os.Stderr, os.Stderr
		if err := c.Run(); err != nil {
			return fmt.Errorf("build %v: %w", packages, err)
		}
	}
	return nil
}

// readFiles reads the compiled programs and nothing else that may lie there.
func readFiles(root string) (map[string][]byte, error) {
	files := map[string][]byte{}
	for dir, packages := range programs {
		for _, p := range packages {
			name := filepath.Join(dir, filepath.Base(p))
			b, err := os.ReadFile(filepath.Join(root, name))
			if err != nil {
				return nil, err
			}
			if err := requireStatic(name, b); err != nil {
				return nil, err
			}
			files[name] = b
		}
	}
	return files, nil
}
