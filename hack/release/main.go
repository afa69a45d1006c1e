package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

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
	// tree is the checkout. out is the folder in which the folder of the release appears. cache is
	// the folder that keeps packages of Debian.
	tree, out, cache string
	// version is the tag. name is the name of the image of the network, without a tag.
	version, name string
	// key is a private key file of OpenSSH, or the public key of a key that an agent has.
	key string
	// progress gets a line when a step begins, and one when it is done.
	progress io.Writer
}

func main() {
	commandline.Main("release", read, func(ctx context.Context, o order) error {
		dir, err := release(ctx, o, build)
		if err == nil {
			fmt.Printf("%s\ncheck it: hack/release/verify.sh --key PUBLIC-KEY --version %s %[1]s\n",
				dir, o.version)
		}
		return err
	})
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
	o.out, o.cache = filepath.Join(o.tree, "out/release"), filepath.Join(o.tree, "out/debian")
	o.progress = os.Stderr
	return o, err
}

// step runs a step of the release and reports its progress.
func (o order) step(what string, do func() error) error {
	fmt.Fprintf(o.progress, "%s …\n", what)
	start := time.Now()
	if err := do(); err != nil {
		return err
	}
	fmt.Fprintf(o.progress, "%s: done in %v\n", what, time.Since(start).Round(time.Second))
	return nil
}

// release writes the folder o.out/o.version and returns its path. build writes what is built from
// the sources, from a checkout of the tag. If an error is returned, the folder does not exist, or
// existed before.
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
	if err := o.fromTag(ctx, filepath.Join(tmp, "tree"), func(from order) error {
		return build(ctx, from, whole)
	}); err != nil {
		return "", err
	}
	err = o.step("sums and signature", func() error { return sign(ctx, o, whole) })
	if err != nil {
		return "", err
	}

	dir = filepath.Join(o.out, o.version)
	return dir, os.Rename(whole, dir)
}

// fromTag calls build with an order for the new folder tree. It is a repository that has only the
// commit of the tag, so settings, attributes and hooks of the user's repository do not change what
// is built, nor do changes that git does not report (git-update-index(1), --assume-unchanged) or
// that are made meanwhile. git checks the sum of each object that it fetches.
func (o order) fromTag(ctx context.Context, tree string, build func(order) error) error {
	tag := "refs/tags/" + o.version
	for _, args := range [][]string{
		{"init", "-q", "--template=", tree},
		{"-C", tree, "fetch", "-q", "--depth=1", "--no-tags", o.tree, tag + ":" + tag},
		{"-C", tree, "checkout", "-q", "--detach", tag},
	} {
		if _, err := command(ctx, o.tree, "git", args...); err != nil {
			return err
		}
	}
	if err := o.step("sums of modules", func() error {
		return verifyModules(ctx, tree)
	}); err != nil {
		return err
	}

	from := o
	from.tree = tree
	if err := build(from); err != nil {
		return err
	}
	if err := checkTree(ctx, tree, o.version); err != nil {
		return fmt.Errorf("after the build: %w", err)
	}
	return nil
}
