package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"sigs.k8s.io/yaml"
)

// manifests are the kustomizations that a release has as one file each.
var manifests = map[string]string{
	"kubeveil.yaml":      "manifests",
	"kubeveil-csi.yaml":  "manifests/csi",
	"uninstall.yaml":     "manifests/uninstall",
	"uninstall-csi.yaml": "manifests/csi-uninstall",
}

// renderAll writes the manifests into dir. It needs the folder work for itself. kustomize is the
// command that renders a folder. built has all images that the manifests name, by their names in
// the tree.
func renderAll(ctx context.Context, o order, dir, work string, kustomize []string,
	built map[string]description) error {
	for _, file := range slices.Sorted(maps.Keys(manifests)) {
		text, err := o.render(ctx, manifests[file], work, kustomize, built)
		if err != nil {
			return fmt.Errorf("render %s: %w", file, err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// localImage matches the names of images in the tree.
var localImage = regexp.MustCompile(`localhost/[^\s"]+:dev\b`)

// render returns the objects of a kustomization of the tree, in its order, with images by tag and
// digest.
func (o order) render(ctx context.Context, base, work string, kustomize []string,
	built map[string]description) ([]byte, error) {
	overlay, err := os.MkdirTemp(work, "render-")
	if err != nil {
		return nil, err
	}

	// kustomize takes relative paths only.
	from, err := filepath.Rel(overlay, filepath.Join(o.tree, base))
	if err != nil {
		return nil, err
	}
	var replaced []map[string]string
	for _, image := range slices.Sorted(maps.Keys(built)) {
		replaced = append(replaced, map[string]string{"name": "localhost/" + image,
			"newName": o.imageName(image), "newTag": o.version, "digest": built[image].Digest})
	}
	text, err := yaml.Marshal(map[string]any{
		"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
		"sortOptions": map[string]string{"order": "fifo"},
		"resources":   []string{from}, "images": replaced})
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), text, 0o644); err != nil {
		return nil, err
	}

	out, err := command(ctx, o.tree, kustomize[0], append(kustomize[1:], overlay)...)
	if err != nil {
		return nil, err
	}
	if image := localImage.FindString(out); image != "" {
		return nil, fmt.Errorf("%s names the image %s, which this release does not have", base, image)
	}
	return []byte(out), nil
}
