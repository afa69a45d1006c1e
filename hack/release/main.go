package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/kubeveil/kubeveil/internal/commandline"
)

const usage = `Write the folder of a release: programs, images, manifests, checksums and their signature.

Usage: go run ./hack/release --version VERSION --key FILE [flags]

Examples:
  go run ./hack/release --version v0.1.0 --key ~/.ssh/release
                                       out/release/v0.1.0, signed with a private key
  go run ./hack/release --version v0.1.0 --key ~/.ssh/release.pub
                                       signed by the agent that has the private key
  go run ./hack/release --version v0.1.0 --key ~/.ssh/release --name registry.example/kubeveil
                                       for images that are pushed there

Flags:
`

// order describes the release to write.
type order struct {
	// tree is the checkout. out is the folder in which the folder of the release appears.
	tree, out string
	// version is the tag. name is the name of the image of the network, without a tag.
	version, name string
	// key is a private key file of OpenSSH, or the public key of a key that an agent has.
	key string
}

func main() {
	o, err := read(os.Args[1:], os.Stdout)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(2)
	}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	dir, err := release(ctx, o, build)
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
	fmt.Printf("%s\ncheck it: hack/release/verify.sh --key PUBLIC-KEY --version %s %[1]s\n", dir,
		o.version)
}

// read parses the command line. If the user requests help, it writes the help to help and returns
// pflag.ErrHelp.
func read(args []string, help io.Writer) (o order, err error) {
	flags := commandline.New("go run ./hack/release")
	flags.StringVar(&o.version, "version", "", "`tag` of the commit, such as v0.1.0")
	flags.StringVar(&o.key, "key", "", "`file` with the private key that signs, or with the "+
		"public key of a key in the agent; outside the tree")
	flags.StringVar(&o.name, "name", "localhost/kubeveil", "`name` of the image kubeveil in the "+
		"manifests; NAME-csi and NAME-tools are the others")
	if err := commandline.ParseAll(flags, usage, args, help); err != nil {
		return o, err
	}

	o.tree, err = os.Getwd()
	o.out = filepath.Join(o.tree, "out/release")
	return o, err
}

// release writes the folder o.out/o.version and returns its path. build writes what is built from
// the sources. If an error is returned, the folder does not exist, or existed before.
func release(ctx context.Context, o order, build func(context.Context, order, string) error) (
	dir string, err error) {
	if err := o.check(ctx); err != nil {
		return "", err
	}

	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(o.out, "."+o.version+"-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()

	whole := filepath.Join(tmp, "release")
	if err := os.Mkdir(whole, 0o755); err != nil {
		return "", err
	}
	version := filepath.Join(whole, versionFile)
	if err := os.WriteFile(version, []byte(o.version+"\n"), 0o644); err != nil {
		return "", err
	}
	if err := build(ctx, o, whole); err != nil {
		return "", err
	}
	if err := sign(ctx, o, whole); err != nil {
		return "", err
	}

	// The tree may have changed meanwhile.
	if err := checkTree(ctx, o.tree, o.version); err != nil {
		return "", fmt.Errorf("after the build: %w", err)
	}
	dir = filepath.Join(o.out, o.version)
	return dir, os.Rename(whole, dir)
}

// command runs a program in the folder dir and returns its standard output. The program has the
// terminal, for passphrases.
func command(ctx context.Context, dir, name string, args ...string) (string, error) {
	c := exec.CommandContext(ctx, name, args...)
	c.Dir, c.Stdin, c.Stderr, c.Env = dir, os.Stdin, os.Stderr, environment()
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w", strings.Join(append([]string{name}, args...), " "), err)
	}
	return string(out), nil
}

// changing are variables that change what Go's tools build.
var changing = []string{"GOAMD64", "GOARCH", "GOARM64", "GODEBUG", "GOEXPERIMENT", "GOFIPS140",
	"GOFLAGS", "GOOS", "GOWORK"}

// environment returns the environment without variables that change what git and Go's tools do.
func environment() []string {
	var kept []string
	for _, line := range os.Environ() {
		name, _, _ := strings.Cut(line, "=")
		if !strings.HasPrefix(name, "GIT_") && !slices.Contains(changing, name) {
			kept = append(kept, line)
		}
	}
	return append(kept, "GOFLAGS=-trimpath", "GOWORK=off")
}
