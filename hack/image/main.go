// Command image builds the container images of Kubeveil, without a container engine. The product's,
// kubeveil, holds the programs and the reference CNI plugins, static and stripped, and nothing
// else, no shell either. kubeveil-csi holds the CSI driver, its side-cars and Debian's tools of
// ext4 and xfs; kubeveil-tools what the suites and veilctl run in pods of their own. The same
// sources and Go version give the same bytes: debian.lock has the packages of Debian's tools, and
// nothing is copied from the building machine. hack/lock-debian.sh writes it.
//
// Usage:
//
//	go run ./hack/image [--image kubeveil] [--arch amd64,arm64] [--tag localhost/kubeveil:dev]
//		[--version V] [--out out/images/kubeveil.tar]
//
// The result is an OCI image layout in a tar archive, which these read:
//
//	ctr -n k8s.io images import kubeveil.tar
//	skopeo copy oci-archive:kubeveil.tar docker://registry.example/kubeveil:dev
package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/kubeveil/kubeveil/internal/commandline"
)

const usage = `Build a container image of Kubeveil without a container engine, as an OCI layout in a
tar archive.

Usage: go run ./hack/image [flags]

Examples:
  go run ./hack/image                           the product: out/images/kubeveil.tar
  go run ./hack/image --image kubeveil-tools    what suites and veilctl run in pods of their own
  go run ./hack/image --arch amd64,arm64        an index with an image for each of both
  go run ./hack/image --tag registry.example/kubeveil:v0.1.0 --version v0.1.0

What reads the archive:
  ctr -n k8s.io images import out/images/kubeveil.tar
  skopeo copy oci-archive:out/images/kubeveil.tar docker://registry.example/kubeveil:dev

Flags:
`

// order describes what to build: one image, or an index of images if there are several arches.
type order struct {
	image, tag, version, out string
	arches                   []string
	// description is the file for a description. An empty string means no file.
	description string
	// cache is the folder that keeps packages of Debian.
	cache string
}

func main() { commandline.Main("image", read, run) }

// read parses the command line. If the user requests help, it writes the help to help and returns
// pflag.ErrHelp.
func read(args []string, help io.Writer) (o order, err error) {
	flags := commandline.New("go run ./hack/image")
	flags.StringVar(&o.image, "image", recipes[0].name,
		"which `image`: kubeveil, kubeveil-csi or kubeveil-tools")
	flags.StringSliceVar(&o.arches, "arch", []string{runtime.GOARCH},
		"`architectures` as Go names them, with commas between them")
	flags.StringVar(&o.tag, "tag", "",
		"`name` under which a runtime that imports the image finds it (default "+
			"localhost/IMAGE:dev)")
	flags.StringVar(&o.out, "out", "", "`file` to write (default out/images/IMAGE.tar)")
	flags.StringVar(&o.version, "version", "",
		"`version` of the programs (default: the output of hack/version.sh)")
	flags.StringVar(&o.description, "description", "",
		"`file` for what the image holds, as JSON: digest, programs, packages of Debian")
	flags.StringVar(&o.cache, "cache", "out/debian", "`folder` that keeps packages of Debian")
	if err := commandline.ParseAll(flags, usage, args, help); err != nil {
		return o, err
	}

	o.tag, o.out = cmp.Or(o.tag, "localhost/"+o.image+":dev"),
		cmp.Or(o.out, "out/images/"+o.image+".tar")
	_, err = named(o.image)
	return o, err
}

// run builds the image and prints its digest.
func run(ctx context.Context, o order) error {
	r, err := named(o.image)
	if err != nil {
		return err
	}

	stamps, err := versionScript(ctx, o.version, "--flags")
	if err != nil {
		return err
	}
	if o.version, err = versionScript(ctx, o.version); err != nil {
		return err
	}
	if r.name == recipes[0].name {
		tools, err := toolsBeside(o.tag)
		if err != nil {
			return err
		}
		stamps += " -X " + module + "pkg/remote.toolsImage=" + tools
	}

	d := description{Images: map[string]content{}}
	images := make([]v1.Image, len(o.arches))
	for i, arch := range o.arches {
		root := filepath.Join(filepath.Dir(o.out), "root-"+arch)
		if images[i], err = o.imageFor(ctx, r, arch, stamps, root); err != nil {
			return err
		}
		if d.Images[arch], err = contentOf(r, arch, root); err != nil {
			return err
		}
	}

	digest, err := writeArchive(o.out, o.tag, images)
	if err != nil {
		return err
	}
	fmt.Printf("%s %s in %s\n", o.tag, digest, o.out)
	d.Digest = digest.String()
	return d.write(o.description)
}

// versionScript returns the output of hack/version.sh for a version. An empty version means the
// environment variable VERSION, or else the version of the tree.
func versionScript(ctx context.Context, version string, args ...string) (string, error) {
	c := exec.CommandContext(ctx, "hack/version.sh", args...)
	if version != "" {
		c.Env = append(os.Environ(), "VERSION="+version)
	}
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("hack/version.sh: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// toolsBeside returns the name of the tools image that belongs to the image kubeveil with this tag.
// Its programs use that image by default.
func toolsBeside(tag string) (string, error) {
	t, err := name.NewTag(tag)
	if err != nil {
		return "", fmt.Errorf("--tag: %w", err)
	}
	return t.Context().Name() + "-tools:" + t.TagStr(), nil
}

// imageFor returns the image for one architecture. Its programs are built in the folder root.
// stamps are options of the linker that set the version.
func (o order) imageFor(ctx context.Context, r recipe, arch, stamps, root string) (v1.Image,
	error) {
	if err := compile(ctx, r, arch, stamps, root); err != nil {
		return nil, err
	}
	files, err := readFiles(r, root)
	if err != nil {
		return nil, err
	}
	if len(r.debian) > 0 {
		if err := addDebian(ctx, files, r, arch, o.cache); err != nil {
			return nil, err
		}
	}

	return newImage(r, arch, o.version, files)
}

// compile builds the programs of the recipe into folders below root. Programs that are up to date
// are not linked again.
func compile(ctx context.Context, r recipe, arch, stamps, root string) error {
	root, err := filepath.Abs(root)
	if err != nil {
		return err
	}
	for dir, packages := range r.programs {
		if err := build(ctx, ".", arch, filepath.Join(root, dir),
			stamps, packages); err != nil {
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
			if err := build(ctx, r.in, arch, filepath.Join(root, r.dir),
				"-X main.version="+strings.TrimSpace(string(said)), []string{p}); err != nil {
				return err
			}
		}
	}
	return nil
}

// build builds packages in the module at in into the folder dir. stamps are options of the linker.
// A line on standard error says what is built.
func build(ctx context.Context, in, arch, dir, stamps string, packages []string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	names := make([]string, len(packages))
	for i, p := range packages {
		names[i] = filepath.Base(p)
	}
	fmt.Fprintf(os.Stderr, "  build %s for %s\n", strings.Join(names, ", "), arch)

	args := append([]string{"build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w " + stamps,
		"-o", dir + "/"}, packages...)
	c := exec.CommandContext(ctx, "go", args...)
	c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch,
		"GOFLAGS=-mod=readonly")
	c.Dir, c.Stdout, c.Stderr = in, os.Stderr, os.Stderr
	if err := c.Run(); err != nil {
		return fmt.Errorf("build %v: %w", packages, err)
	}
	return nil
}

// readFiles reads the programs that compile built. It ignores other files below root.
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
