package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/kubeveil/kubeveil/hack/chart"
)

// arches are the architectures of a release, as Go names them.
var arches = []string{"amd64", "arm64"}

// programs are the programs that a release has as files, too. They are the same bytes as in the
// image kubeveil.
var programs = []string{"veilctl", "veild", "veil-wg"}

// nodeFiles are files for nodes, which get-started names.
var nodeFiles = []string{
	"manifests/systemd/NetworkManager-kubeveil.conf",
	"manifests/systemd/kubeveil-close.service",
	"manifests/systemd/networkd-kubeveil.conf",
}

// images are the images of a release, as hack/image names them.
var images = []string{"kubeveil", "kubeveil-csi", "kubeveil-tools"}

// cyclonedx is the package of the program that reads bills from programs.
const cyclonedx = "github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod"

// build writes all files of the release but checksums and signature into dir.
func build(ctx context.Context, o order, dir string) error {
	work := filepath.Join(filepath.Dir(dir), "build")
	kustomize, bills := filepath.Join(work, "kustomize"), filepath.Join(work, "cyclonedx-gomod")
	if err := o.step("tools", func() error {
		return errors.Join(buildTool(ctx, o, bills, cyclonedx),
			buildTool(ctx, o, kustomize, "sigs.k8s.io/kustomize/kustomize/v5"))
	}); err != nil {
		return err
	}

	built := map[string]description{}
	for _, image := range images {
		if err := o.step("image "+image+" and its SBOMs", func() (err error) {
			if built[image], err = buildImage(ctx, o, image, dir, work); err != nil {
				return err
			}
			return writeBills(ctx, o, bills, image, dir, built[image])
		}); err != nil {
			return err
		}
	}
	for arch, c := range built["kubeveil"].Images {
		for _, p := range programs {
			from := filepath.Join(c.Root, "usr/local/bin", p)
			if err := os.Rename(from, filepath.Join(dir, p+"-linux-"+arch)); err != nil {
				return err
			}
		}
	}

	if err := o.step("manifests, components and the chart", func() error {
		k := chart.Kustomize{Tree: o.tree, Work: work, Command: []string{kustomize, "build"}}
		return errors.Join(renderAll(ctx, o, dir, k, built), writeChart(ctx, o, dir, k, built),
			writeComponents(o, dir))
	}); err != nil {
		return err
	}
	for _, f := range append(nodeFiles, "hack/release/verify.sh") {
		if err := copyFile(filepath.Join(o.tree, f), filepath.Join(dir, filepath.Base(f))); err != nil {
			return err
		}
	}
	return describe(ctx, o, dir, built)
}

// buildTool builds a program at path. The module hack/tools/NAME, with the name of the program, has
// its version.
func buildTool(ctx context.Context, o order, path, pkg string) error {
	_, err := command(ctx, filepath.Join(o.tree, "hack/tools", filepath.Base(path)), "go", "build",
		"-o", path, pkg)
	return err
}

// buildImage builds an image for all architectures: IMAGE.tar in dir, programs in a folder of work.
func buildImage(ctx context.Context, o order, image, dir, work string) (d description, err error) {
	archive := filepath.Join(work, image, image+".tar")
	about := filepath.Join(work, image, "description.json")
	if _, err := command(ctx, o.tree, "go", "run", "./hack/image", "--image", image,
		"--arch", strings.Join(arches, ","), "--version", o.version,
		"--tag", o.imageName(image)+":"+o.version, "--out", archive,
		"--description", about, "--cache", o.cache); err != nil {
		return d, err
	}
	text, err := os.ReadFile(about)
	if err != nil {
		return d, err
	}
	if err := json.Unmarshal(text, &d); err != nil {
		return d, fmt.Errorf("%s: %w", about, err)
	}
	return d, os.Rename(archive, filepath.Join(dir, image+".tar"))
}

// imageName returns the name of an image in the manifests of the release: image is its name in the
// tree without the registry, such as kubeveil-csi.
func (o order) imageName(image string) string {
	return o.name + strings.TrimPrefix(image, "kubeveil")
}

// copyFile copies a file with its permissions.
func copyFile(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, text, info.Mode().Perm())
}
