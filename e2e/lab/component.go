package lab

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

// translates reports whether the lab's veilds translate services: then the lab has the component
// manifests/components/services.
func (o Options) translates() bool { return o.VeildConfig["serviceProxy"] == "ebpf" }

// judges reports whether the lab's veilds enforce network policies: then the lab has the component
// manifests/components/policy.
func (o Options) judges() bool { return o.VeildConfig["policy"] == "kubernetes" }

// apiServers returns the addresses in services.apiServers. known reports whether that key is
// written: then the lab has the component manifests/components/api-path, though the key may be
// empty.
func (o Options) apiServers() (servers []string, known bool) {
	services, _ := o.VeildConfig["services"].(map[string]any)
	servers, known = services["apiServers"].([]string)
	return servers, known
}

// giveRights adds the rights of a component to the object that it patches, by kind and name.
func giveRights(root, component, kind, name string, objects []*unstructured.Unstructured) error {
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

// byService reports whether the lab's veilds reach the API servers by their service, as without a
// balancer before these: services.apiServers allows it.
func (o Options) byService() bool {
	servers, _ := o.apiServers()
	return len(servers) > 0
}

// placeServices names the host's tree of cgroups, which veild does not take for the machine's by
// itself: it is a part of it.
func placeServices(settings map[string]any) {
	services := map[string]any{"cgroup": "/sys/fs/cgroup"}
	if have, ok := settings["services"].(map[string]any); ok {
		for key, value := range have {
			services[key] = value
		}
	}
	settings["services"] = services
}

// overlay is a user's own kustomization, for the folders of the manifests and of components, and
// for files with patches.
const overlay = `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
# That of the bases counts for nothing here.
sortOptions: {order: fifo}
resources: [%q]
components: [%s]
patches: [%s]
`

// WriteOverlay makes the folder dir, whose kustomization adds components to the manifests in the
// folder base. Patches are the names of files that the caller writes to dir.
func WriteOverlay(dir, base string, components []string, patches ...string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	// kustomize takes relative folders only, and looks for them from where the links lead.
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
