package apiobject

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// GiveRights adds the rules in rights.yaml of a component to the role among objects that has this
// kind and name.
func GiveRights(root, component, kind, name string, objects []*unstructured.Unstructured) error {
	text, err := os.ReadFile(filepath.Join(root, "manifests/components", component, "rights.yaml"))
	if err != nil {
		return err
	}
	if text, err = yaml.YAMLToJSON(text); err != nil {
		return err
	}
	patch, err := jsonpatch.DecodePatch(text)
	if err != nil {
		return err
	}

	for _, o := range objects {
		if o.GetKind() != kind || o.GetName() != name {
			continue
		}
		was, err := json.Marshal(o)
		if err != nil {
			return err
		}
		now, err := patch.Apply(was)
		if err != nil {
			return fmt.Errorf("rights of the component %s: %w", component, err)
		}
		return json.Unmarshal(now, o)
	}

	return fmt.Errorf("rights of the component %s: there is no %s %s", component, kind, name)
}

// ReadSites reads the objects of the component sites: its Deployment, definitions, accounts, rights
// and admission policies.
func ReadSites(root string) ([]*unstructured.Unstructured, error) {
	dir := filepath.Join(root, "manifests/components/sites")
	text, err := os.ReadFile(filepath.Join(dir, "deployment.yaml"))
	if err != nil {
		return nil, err
	}
	deployment := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(text, &deployment.Object); err != nil {
		return nil, err
	}

	objects := []*unstructured.Unstructured{deployment}
	for _, name := range []string{"crd", "serviceaccount.yaml", "clusterrole.yaml",
		"clusterrolebinding.yaml", "clusterrole-reader.yaml", "role.yaml", "rolebinding.yaml",
		"admissionpolicy-records.yaml", "admissionpolicybinding-records.yaml",
		"admissionpolicy-objects.yaml", "admissionpolicybinding-objects.yaml"} {
		found, err := ReadManifests(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		objects = append(objects, found...)
	}
	return objects, nil
}

// overlay is the format of a user's kustomization. Its arguments are the folders of the manifests
// and of components, and files with patches.
const overlay = `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
# That of the bases counts for nothing here.
sortOptions: {order: fifo}
resources: [%q]
components: [%s]
patches: [%s]
`

// WriteOverlay creates the folder dir with a kustomization that adds components and patches to the
// manifests in the folder base. patches are the names of files that the caller writes to dir.
func WriteOverlay(dir, base string, components []string, patches ...string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	// kustomize accepts only relative folders, and resolves them after following symbolic links.
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	if base, err = filepath.EvalSymlinks(base); err != nil {
		return err
	}
	if base, err = filepath.Rel(real, base); err != nil {
		return err
	}

	var folders, paths []string
	for _, c := range components {
		folders = append(folders, fmt.Sprintf("%q", filepath.Join(base, "components", c)))
	}
	for _, p := range patches {
		paths = append(paths, fmt.Sprintf("{path: %q}", p))
	}
	return os.WriteFile(filepath.Join(dir, "kustomization.yaml"), fmt.Appendf(nil, overlay, base,
		strings.Join(folders, ", "), strings.Join(paths, ", ")), 0o644)
}
