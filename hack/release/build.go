package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
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

// build writes all files of the release but checksums and signature into dir.
func build(ctx context.Context, o order, dir string) error {
	work := filepath.Join(filepath.Dir(dir), "build")
	digest, err := buildImage(ctx, o, "kubeveil", work)
	if err != nil {
		return err
	}
	for _, arch := range arches {
		for _, p := range programs {
			from := filepath.Join(work, "root-"+arch, "usr/local/bin", p)
			if err := os.Rename(from, filepath.Join(dir, p+"-linux-"+arch)); err != nil {
				return err
			}
		}
	}
	if err := os.Rename(filepath.Join(work, "kubeveil.tar"),
		filepath.Join(dir, "kubeveil.tar")); err != nil {
		return err
	}

	kustomize := filepath.Join(work, "kustomize")
	c := []string{"build", "-o", kustomize, "sigs.k8s.io/kustomize/kustomize/v5"}
	if _, err := command(ctx, filepath.Join(o.tree, "hack/tools/kustomize"), "go",
		c...); err != nil {
		return err
	}
	images := map[string]string{"kubeveil": digest}
	if err := renderAll(ctx, o, dir, work, []string{kustomize, "build"}, images); err != nil {
		return err
	}

	for _, f := range append(nodeFiles, "hack/release/verify.sh") {
		if err := copyFile(filepath.Join(o.tree, f), filepath.Join(dir, filepath.Base(f))); err != nil {
			return err
		}
	}
	return nil
}

// aDigest matches the digest of an image in the output of hack/image.
var aDigest = regexp.MustCompile(`\bsha256:[0-9a-f]{64}\b`)

// buildImage builds an image for all architectures into the folder work, as NAME.tar, and returns
// the digest of its index.
func buildImage(ctx context.Context, o order, image, work string) (digest string, err error) {
	out, err := command(ctx, o.tree, "go", "run", "./hack/image", "--image", image,
		"--arch", strings.Join(arches, ","), "--version", o.version,
		"--tag", o.imageName(image)+":"+o.version, "--out", filepath.Join(work, image+".tar"))
	if err != nil {
		return "", err
	}
	if digest = aDigest.FindString(out); digest == "" {
		return "", fmt.Errorf("hack/image printed no digest: %q", out)
	}
	return digest, nil
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
