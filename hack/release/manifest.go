package main

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/kubeveil/kubeveil/hack/chart"
)

// manifests are the kustomizations that a release has as one file each.
var manifests = map[string]string{
	"kubeveil.yaml":               "manifests",
	"kubeveil-csi.yaml":           "manifests/csi",
	"kubeveil-csi-snapshots.yaml": "manifests/csi-snapshots",
	definitions:                   "manifests/components/snapshots/crd",
	"uninstall.yaml":              "manifests/uninstall",
	"uninstall-csi.yaml":          "manifests/csi-uninstall",
}

const (
	// definitions is the file with the definitions of snapshots, which names no image.
	definitions = "snapshots-crd.yaml"
	// components is the archive of the components, for kustomizations of users.
	components = "components.tgz"
)

// renderAll writes the manifests into dir. k renders those of the tree. built has all images that
// the manifests name, by their names in the tree.
func renderAll(ctx context.Context, o order, dir string, k chart.Kustomize,
	built map[string]description) error {
	for _, file := range slices.Sorted(maps.Keys(manifests)) {
		text, err := o.render(ctx, manifests[file], k, built)
		if err != nil {
			return fmt.Errorf("render %s: %w", file, err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// localImage matches the names of images in the tree.
var localImage = regexp.MustCompile(`localhost/[^\s"]+:dev\b`)

// render returns the objects of a kustomization of the tree, in its order, with images by tag and
// digest.
func (o order) render(ctx context.Context, base string, k chart.Kustomize,
	built map[string]description) (string, error) {
	var replaced []map[string]string
	for _, image := range slices.Sorted(maps.Keys(built)) {
		replaced = append(replaced, map[string]string{"name": "localhost/" + image,
			"newName": o.imageName(image), "newTag": o.version, "digest": built[image].Digest})
	}
	out, err := k.Render(ctx, base, nil, map[string]any{"images": replaced})
	if err != nil {
		return "", err
	}
	if image := localImage.FindString(out); image != "" {
		return "", fmt.Errorf("%s names the image %s, which this release does not have", base,
			image)
	}
	return out, nil
}

// writeChart writes the Helm chart into dir, with the images of built as its default values.
func writeChart(ctx context.Context, o order, dir string, k chart.Kustomize,
	built map[string]description) error {
	image := func(name string) chart.Image {
		return chart.Image{Name: o.imageName(name), Digest: built[name].Digest}
	}
	r := chart.Release{Version: o.version, Image: image("kubeveil"), CSI: image("kubeveil-csi")}
	files, err := chart.Files(ctx, r, k)
	if err != nil {
		return fmt.Errorf("chart: %w", err)
	}
	return chart.Write(filepath.Join(dir, chart.Name+"-"+r.Number()+".tgz"), chart.Name, files)
}

// writeComponents writes the archive of the components into dir.
func writeComponents(o order, dir string) error {
	const folder = "components"
	from := os.DirFS(filepath.Join(o.tree, "manifests", folder))
	files := map[string]string{}
	err := fs.WalkDir(from, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(from, path)
		files[path] = string(text)
		return err
	})
	if err != nil {
		return err
	}
	return chart.Write(filepath.Join(dir, components), folder, files)
}
