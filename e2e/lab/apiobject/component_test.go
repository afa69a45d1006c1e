package apiobject

import (
	"os"
	"path/filepath"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
)

// The relative folders in an overlay exist, also if the overlay is made through a symbolic link.
func TestOverlayNamesFoldersThatExist(t *testing.T) {
	root, err := filepath.Abs("../../..")
	errtest.Must(t, err)
	at := t.TempDir()
	real := filepath.Join(at, "far/away")
	errtest.Must(t, os.MkdirAll(real, 0o755))
	errtest.Must(t, os.Symlink("far/away", filepath.Join(at, "link")))
	errtest.Must(t, WriteOverlay(filepath.Join(at, "link"), filepath.Join(root, "manifests"),
		[]string{"services", "policy"}))

	text := filetest.Read(t, filepath.Join(real, "kustomization.yaml"))
	var k struct {
		Resources, Components []string
		Patches               []any
	}
	errtest.Must(t, yaml.Unmarshal(text, &k))
	if len(k.Resources) != 1 || len(k.Components) != 2 || len(k.Patches) != 0 {
		t.Fatalf("kustomization %+v", k)
	}
	for _, folder := range append(k.Resources, k.Components...) {
		if filepath.IsAbs(folder) {
			t.Errorf("%s: kustomize takes relative paths only", folder)
		}
		if _, err := os.Stat(filepath.Join(real, folder, "kustomization.yaml")); err != nil {
			t.Error(err)
		}
	}
}
