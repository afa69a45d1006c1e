// Package manifesttest reads the files of manifests/ for tests, as kustomize does. It is imported
// by tests only.
//
// It supports only the features that our manifests use: resources in the order "fifo", and JSON
// patches in files.
package manifesttest

import (
	"bytes"
	"errors"
	"io"
	"path/filepath"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
)

// Manifest is a file with its one object.
type Manifest struct {
	Path, Text string
	Object     *unstructured.Unstructured
}

// Read returns the manifest in the file at path. It fails the test if the file has more than one
// object.
func Read(t *testing.T, path string) Manifest {
	t.Helper()
	b := filetest.Read(t, path)
	m := Manifest{Path: path, Text: string(b), Object: &unstructured.Unstructured{}}
	dec := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(b), 4096)
	if err := dec.Decode(&m.Object.Object); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	if err := dec.Decode(&map[string]any{}); !errors.Is(err, io.EOF) {
		t.Errorf("%s holds more than one object", path)
	}
	return m
}

// Kustomized returns the manifests that the kustomization in dir lists, in its order. It descends
// into directories with kustomizations.
func Kustomized(t *testing.T, dir string) []Manifest {
	t.Helper()
	var out []Manifest
	k := Read(t, filepath.Join(dir, "kustomization.yaml")).Object
	resources, _, err := unstructured.NestedStringSlice(k.Object, "resources")
	errtest.Must(t, err)
	for _, r := range resources {
		path := filepath.Join(dir, r)
		if filepath.Ext(path) == ".yaml" {
			out = append(out, Read(t, path))
		} else {
			out = append(out, Kustomized(t, path)...)
		}
	}
	return out
}

// Patched returns a copy of o to which the JSON patch in the file at path was applied.
func Patched(t *testing.T, path string, o *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	text, err := yaml.YAMLToJSON(filetest.Read(t, path))
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	patch, err := jsonpatch.DecodePatch(text)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	if text, err = o.MarshalJSON(); err != nil {
		t.Fatal(err)
	}
	if text, err = patch.Apply(text); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	out := &unstructured.Unstructured{}
	if err := out.UnmarshalJSON(text); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return out
}
