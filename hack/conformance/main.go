// Command conformance makes the images of the upstream end-to-end tests, without a container engine
// and without a registry: Debian's programs below, the tests' own programs above, under the names
// that e2e.test requests, or the names in --images. hack/build-conformance.sh runs it.
//
// Usage:
//
//	go run ./hack/conformance [--porter DIR] [--root out/images/conformance-root.tar]
//		[--bin out/bin] [--agnhost out/bin/agnhost] [--out out/images/conformance.tar]
//		[--images NAME,…]
//
// It prints the images that it made and the images for which it has no recipe. The archive has the
// format of docker save, which `ctr -n k8s.io images import` reads.
//
// It imports e2e/conformance for the name of the registry and the list of repositories. A
// conformance run passes the same list to the tests, so that they request these images.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/spf13/pflag"

	"github.com/kubeveil/kubeveil/e2e/conformance"
	"github.com/kubeveil/kubeveil/internal/commandline"
)

const usage = `Make the images of the upstream end-to-end tests, without a container engine.

Usage: go run ./hack/conformance [flags]

Flags:
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	flags := commandline.New("go run ./hack/conformance")
	root := flags.String("root", "out/images/conformance-root.tar",
		"`file` with the unpacked Debian packages")
	bin := flags.String("bin", "out/bin", "`folder` with e2e.test and the programs of the images")
	agnhost := flags.String("agnhost", "",
		"the program `file` of the image agnhost (default: agnhost in the folder of --bin)")
	porter := flags.String("porter", "",
		"`folder` with localhost.crt and localhost.key: test/images/agnhost/porter of the "+
			"Kubernetes module; the image agnhost needs it")
	out := flags.String("out", "out/images/conformance.tar", "`file` to write")
	images := flags.String("images", "",
		"`names` of the images to make, with commas between (default: the images of e2e.test)")
	switch err := commandline.ParseAll(flags, usage, os.Args[1:], os.Stdout); {
	case errors.Is(err, pflag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintln(os.Stderr, "conformance images:", err)
		os.Exit(2)
	}

	var wanted []string
	if *images != "" {
		wanted = strings.Split(*images, ",")
	}
	if *agnhost == "" {
		*agnhost = filepath.Join(*bin, "agnhost")
	}

	k := newKitchen(*root, *bin, *agnhost, *porter)
	if err := run(ctx, wanted, k, *bin, *out); err != nil {
		fmt.Fprintln(os.Stderr, "conformance images:", err)
		os.Exit(1)
	}
}

// run makes the wanted images. An empty list means the images of e2e.test.
func run(ctx context.Context, wanted []string, k *kitchen, bin, out string) (err error) {
	named := len(wanted) > 0
	if !named {
		if wanted, err = wantedImages(ctx, filepath.Join(bin, "e2e.test")); err != nil {
			return err
		}
	}

	images := map[name.Reference]v1.Image{}
	for _, image := range wanted {
		ref, err := name.ParseReference(image)
		if err != nil {
			return fmt.Errorf("an image is wanted as %q: %w", image, err)
		}
		cook := recipes[path.Base(ref.Context().Name())]
		if cook == nil && named {
			return fmt.Errorf("image %s: no recipe has this name: add one to recipe.go", image)
		}
		if cook == nil {
			fmt.Printf("not made: %s\n", image)
			continue
		}
		if images[ref], err = cook(k); err != nil {
			return fmt.Errorf("image %s: %w", image, err)
		}
		fmt.Printf("made:     %s\n", image)
	}

	if err := tarball.MultiRefWriteToFile(out+".new", images); err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", out, err), os.Remove(out+".new"))
	}
	return os.Rename(out+".new", out)
}

// wantedImages returns the images that the tests in the program e2e.test use. It passes our list of
// repositories to e2e.test, so that the names have our registry.
func wantedImages(ctx context.Context, program string) (images []string, err error) {
	list, err := os.CreateTemp("", "repo-list-*.yaml")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.Remove(list.Name())) }()
	if _, err := list.Write(conformance.RepoList(conformance.Registry)); err != nil {
		return nil, errors.Join(err, list.Close())
	}
	if err := list.Close(); err != nil {
		return nil, err
	}

	cmd := exec.CommandContext(ctx, program, "--list-images")
	cmd.Env = append(os.Environ(), conformance.RepoListEnv+"="+list.Name())
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	printed, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s --list-images: %w: %s", program, err,
			bytes.TrimSpace(stderr.Bytes()))
	}

	for lines := bufio.NewScanner(bytes.NewReader(printed)); lines.Scan(); {
		if line := strings.TrimSpace(lines.Text()); strings.HasPrefix(line,
			conformance.Registry+"/") {
			images = append(images, line)
		}
	}

	slices.Sort(images)
	if images = slices.Compact(images); len(images) == 0 {
		return nil, fmt.Errorf("%s --list-images printed none of %s", program, conformance.Registry)
	}

	return images, nil
}
