package node_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/kubeveil/kubeveil/internal/nettest"
)

const csiDaemonSet = "csi/driver/daemonset.yaml"

// rendered is the DaemonSet of the driver as kustomize gives it for a cluster's own kustomization:
// the manifests of the driver, and perhaps a component.
func rendered(t *testing.T, components ...string) *unstructured.Unstructured {
	t.Helper()
	kubectl := filepath.Join(root(t), "out/bin/kubectl")
	if _, err := os.Stat(kubectl); err != nil {
		nettest.NeedProgram(t, "kubectl")
		kubectl = "kubectl"
	}

	dir := t.TempDir()
	relative := func(path string) string {
		r, err := filepath.Rel(dir, filepath.Join(root(t), "manifests", path))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}

	own := map[string]any{"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
		"resources": []string{relative("csi")}}
	for _, c := range components {
		own["components"] = []string{relative(filepath.Join("components", c))}
	}

	text, err := yaml.Marshal(own)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), text, 0o600); err != nil {
		t.Fatal(err)
	}

	var failed bytes.Buffer
	cmd := exec.CommandContext(t.Context(), kubectl, "kustomize", dir)
	cmd.Stderr = &failed
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, failed.String())
	}

	dec := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(out), 4096)
	for {
		o := &unstructured.Unstructured{}
		if err := dec.Decode(&o.Object); err != nil {
			t.Fatalf("no DaemonSet: %v", err)
		}
		if o.GetKind() == "DaemonSet" {
			return o
		}
	}
}

// The component for kubelets elsewhere names the folder in one place; no other is forgotten, and
// nothing but those is changed.
func TestKubeletDirComponent(t *testing.T) {
	const usual, elsewhere = "/var/lib/kubelet", "/var/lib/k0s/kubelet"
	component := readManifest(t, filepath.Join(root(t),
		"manifests/components/kubelet-dir/kustomization.yaml"))
	if n := strings.Count(component.text, elsewhere); n != 1 {
		t.Errorf("the folder is in %d places", n)
	}

	text := func(o *unstructured.Unstructured) string {
		b, err := yaml.Marshal(o.Object)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	got, want := text(rendered(t, "kubelet-dir")), text(rendered(t))
	if strings.Contains(got, usual) {
		t.Errorf("%s is left:\n%s", usual, got)
	}

	// Two arguments, and the variable that they name, are added.
	added := []string{"- -endpoint=$(KUBELET_DIR)/plugins/csi.kubeveil.io/csi.sock",
		"- -registration=$(KUBELET_DIR)/plugins_registry", "- name: KUBELET_DIR", "value: " + usual}
	lines := strings.Split(strings.ReplaceAll(got, elsewhere, usual), "\n")
	kept := slices.DeleteFunc(slices.Clone(lines), func(line string) bool {
		return slices.Contains(added, strings.TrimSpace(line))
	})
	if len(lines) != len(kept)+len(added) || strings.Join(kept, "\n") != want {
		t.Errorf("more was changed than the folder:\n%s", got)
	}
}

// The component for Prometheus selects the driver's pods and no others, at the port where their
// metrics are.
func TestServiceMonitorOfVolumes(t *testing.T) {
	dir := filepath.Join(root(t), "manifests/components/csi-servicemonitor")
	monitor, service := readManifest(t, filepath.Join(dir, "servicemonitor.yaml")).object,
		readManifest(t, filepath.Join(dir, "service.yaml")).object
	texts := func(o *unstructured.Unstructured, path ...string) labels.Set {
		m, _, err := unstructured.NestedStringMap(o.Object, path...)
		if err != nil || len(m) == 0 {
			t.Fatalf("%s: %v: %v, %v", o.GetName(), path, m, err)
		}
		return m
	}
	if monitor.GetNamespace() != service.GetNamespace() ||
		!texts(monitor, "spec", "selector", "matchLabels").AsSelector().Matches(
			labels.Set(service.GetLabels())) {
		t.Error("the monitor does not select the service")
	}

	for file, want := range map[string]bool{csiDaemonSet: true,
		"csi-uninstall/daemonset.yaml":                  false,
		"components/snapshots/snapshot-controller.yaml": false, "cni/daemonset-veild.yaml": false} {
		pod := texts(daemonSet(t, file), "spec", "template", "metadata", "labels")
		if texts(service, "spec", "selector").AsSelector().Matches(pod) != want {
			t.Errorf("the service selects the pods of %s: %t, want %t", file, !want, want)
		}
	}

	ports, _, _ := unstructured.NestedSlice(service.Object, "spec", "ports")
	endpoints, _, _ := unstructured.NestedSlice(monitor.Object, "spec", "endpoints")
	containers, _, _ := unstructured.NestedSlice(daemonSet(t, csiDaemonSet).Object, "spec",
		"template", "spec", "containers")
	if len(ports) != 1 || len(endpoints) != 1 || len(containers) == 0 {
		t.Fatalf("ports %v, endpoints %v, containers %v", ports, endpoints, containers)
	}

	listens, _, _ := unstructured.NestedSlice(containers[0].(map[string]any), "ports")
	port := ports[0].(map[string]any)
	if port["name"] != endpoints[0].(map[string]any)["port"] || len(listens) != 1 ||
		port["targetPort"] != listens[0].(map[string]any)["containerPort"] {
		t.Errorf("the monitor asks for %v of %v, veil-csi listens at %v", endpoints[0], port,
			listens)
	}
}
