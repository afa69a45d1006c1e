package lab

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

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

// giveRights adds the rights of a component to veild's role in objects.
func giveRights(root, component string, objects []*unstructured.Unstructured) error {
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
		if o.GetKind() != "ClusterRole" || o.GetName() != "kubeveil-veild" {
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

	return fmt.Errorf("rights of the component %s: there is no ClusterRole kubeveil-veild", component)
}

// byService reports whether the lab's veilds ask the API servers by their service, as where no
// balancer is before these: services.apiServers says that they may.
func (o Options) byService() bool {
	services, _ := o.VeildConfig["services"].(map[string]any)
	return o.translates() && services["apiServers"] != nil
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
