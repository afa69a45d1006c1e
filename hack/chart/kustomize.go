package chart

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"sigs.k8s.io/yaml"
)

// Kustomize renders kustomizations that extend those of the tree.
type Kustomize struct {
	// Tree is the root of the repository. Work is a folder for temporary kustomizations.
	Tree, Work string
	// Command is the program with its first arguments, such as kubectl kustomize.
	Command []string
}

// Render returns the objects of a folder of the tree, in the order of its kustomization. components
// are folders below manifests/components. fields are more fields of the kustomization. Nil means no
// more.
func (k Kustomize) Render(ctx context.Context, folder string, components []string,
	fields map[string]any) (string, error) {
	overlay, err := os.MkdirTemp(k.Work, "render-")
	if err != nil {
		return "", err
	}

	// kustomize takes relative paths only.
	root, err := filepath.Rel(overlay, k.Tree)
	if err != nil {
		return "", err
	}
	own := map[string]any{"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
		"sortOptions": map[string]string{"order": "fifo"},
		"resources":   []string{filepath.Join(root, folder)}}
	var paths []string
	for _, c := range components {
		paths = append(paths, filepath.Join(root, "manifests/components", c))
	}
	if paths != nil {
		own["components"] = paths
	}
	maps.Copy(own, fields)
	text, err := yaml.Marshal(own)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), text, 0o644); err != nil {
		return "", err
	}

	var stderr bytes.Buffer
	c := exec.CommandContext(ctx, k.Command[0], slices.Concat(k.Command[1:], []string{overlay})...)
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("%s with components %q: %w: %s", folder, components, err, &stderr)
	}
	return string(out), nil
}
