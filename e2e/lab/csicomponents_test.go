package lab_test

import (
	"path/filepath"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"
)

const csiDaemonSet = "csi/driver/daemonset.yaml"

// patched is the DaemonSet of the driver with the patches of a component.
func patched(t *testing.T, component string) *unstructured.Unstructured {
	t.Helper()
	ds := daemonSet(t, csiDaemonSet)
	patches, _, err := unstructured.NestedSlice(readManifest(t, filepath.Join(root(t), "manifests/components", component, "kustomization.yaml")).object.Object, "patches")
	if err != nil || len(patches) == 0 {
		t.Fatalf("patches %v, %v", patches, err)
	}
	text, err := ds.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range patches {
		patch, err := yaml.YAMLToJSON([]byte(p.(map[string]any)["patch"].(string)))
		if err != nil {
			t.Fatal(err)
		}
		decoded, err := jsonpatch.DecodePatch(patch)
		if err != nil {
			t.Fatal(err)
		}
		if text, err = decoded.Apply(text); err != nil {
			t.Fatal(err)
		}
	}
	if err := ds.UnmarshalJSON(text); err != nil {
		t.Fatal(err)
	}
	return ds
}

// No place is forgotten by the component for kubelets elsewhere, and it changes nothing but those.
func TestKubeletDirComponent(t *testing.T) {
	text := func(o *unstructured.Unstructured) string {
		b, err := yaml.Marshal(o.Object)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	const usual, elsewhere = "/var/lib/kubelet", "/var/lib/k0s/kubelet"
	got, want := text(patched(t, "kubelet-dir")), text(daemonSet(t, csiDaemonSet))
	if strings.Contains(got, usual) {
		t.Errorf("%s is left:\n%s", usual, got)
	}
	// The two arguments are the flags' defaults, elsewhere.
	lines := strings.Split(strings.ReplaceAll(got, elsewhere, usual), "\n")
	var kept []string
	for _, line := range lines {
		if !strings.Contains(line, "- -endpoint="+usual) && !strings.Contains(line, "- -registration="+usual) {
			kept = append(kept, line)
		}
	}
	if len(lines) != len(kept)+2 || strings.Join(kept, "\n") != want {
		t.Errorf("more was changed than the folder:\n%s", got)
	}
}

// The component for Prometheus selects the driver's pods and no others, at the port where their metrics are.
func TestServiceMonitorOfVolumes(t *testing.T) {
	dir := filepath.Join(root(t), "manifests/components/csi-servicemonitor")
	monitor, service := readManifest(t, filepath.Join(dir, "servicemonitor.yaml")).object, readManifest(t, filepath.Join(dir, "service.yaml")).object
	texts := func(o *unstructured.Unstructured, path ...string) labels.Set {
		m, _, err := unstructured.NestedStringMap(o.Object, path...)
		if err != nil || len(m) == 0 {
			t.Fatalf("%s: %v: %v, %v", o.GetName(), path, m, err)
		}
		return m
	}
	if monitor.GetNamespace() != service.GetNamespace() || !texts(monitor, "spec", "selector", "matchLabels").AsSelector().Matches(labels.Set(service.GetLabels())) {
		t.Error("the monitor does not select the service")
	}
	for file, want := range map[string]bool{csiDaemonSet: true, "csi-uninstall/daemonset.yaml": false, "components/snapshots/snapshot-controller.yaml": false, "cni/daemonset-veild.yaml": false} {
		pod := texts(daemonSet(t, file), "spec", "template", "metadata", "labels")
		if texts(service, "spec", "selector").AsSelector().Matches(pod) != want {
			t.Errorf("the service selects the pods of %s: %t, want %t", file, !want, want)
		}
	}
	ports, _, _ := unstructured.NestedSlice(service.Object, "spec", "ports")
	endpoints, _, _ := unstructured.NestedSlice(monitor.Object, "spec", "endpoints")
	containers, _, _ := unstructured.NestedSlice(daemonSet(t, csiDaemonSet).Object, "spec", "template", "spec", "containers")
	if len(ports) != 1 || len(endpoints) != 1 || len(containers) == 0 {
		t.Fatalf("ports %v, endpoints %v, containers %v", ports, endpoints, containers)
	}
	listens, _, _ := unstructured.NestedSlice(containers[0].(map[string]any), "ports")
	port := ports[0].(map[string]any)
	if port["name"] != endpoints[0].(map[string]any)["port"] || len(listens) != 1 || port["targetPort"] != listens[0].(map[string]any)["containerPort"] {
		t.Errorf("the monitor asks for %v of %v, veil-csi listens at %v", endpoints[0], port, listens)
	}
}
