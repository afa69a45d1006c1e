package manifests_test

import (
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kubeveil/kubeveil/internal/manifesttest"
)

// Each component for Prometheus selects the pods of its daemon and no others, at the port of the
// service.
func TestServiceMonitorsSelectTheirPods(t *testing.T) {
	for component, selects := range map[string]map[string]bool{
		"servicemonitor": {"cni/daemonset-veild.yaml": true, "cni/daemonset-veil-wg.yaml": false,
			"uninstall/daemonset.yaml": false},
		"csi-servicemonitor": {csiDaemonSet: true, "csi-uninstall/daemonset.yaml": false,
			"components/snapshots/snapshot-controller.yaml": false,
			"cni/daemonset-veild.yaml":                      false},
		"sites-servicemonitor": {"components/sites/deployment.yaml": true,
			"cni/daemonset-veild.yaml": false},
	} {
		t.Run(component, func(t *testing.T) {
			monitor, service := monitored(t, component)
			if monitor.GetNamespace() != service.GetNamespace() {
				t.Error("a monitor without namespaceSelector sees its own namespace only")
			}
			if !texts(t, monitor, "spec", "selector", "matchLabels").AsSelector().Matches(
				labels.Set(service.GetLabels())) {
				t.Error("the monitor does not select the service")
			}

			for file, want := range selects {
				pod := texts(t, manifesttest.Read(t, file).Object, "spec", "template", "metadata",
					"labels")
				if texts(t, service, "spec", "selector").AsSelector().Matches(pod) != want {
					t.Errorf("the service selects the pods of %s: %t, want %t", file, !want, want)
				}
			}

			port := only(t, service, "spec", "ports")
			endpoint := only(t, monitor, "spec", "endpoints")
			if port["name"] != endpoint["port"] {
				t.Errorf("the monitor asks for port %v, the service has %v", endpoint["port"],
					port["name"])
			}
		})
	}
}

// The service of veil-csi's metrics leads to the port where it listens. TestServiceMonitor of
// e2e/node/network requests veild's port.
func TestServiceMonitorOfVolumes(t *testing.T) {
	_, service := monitored(t, "csi-servicemonitor")
	containers, _, _ := unstructured.NestedSlice(manifesttest.Read(t, csiDaemonSet).Object.Object,
		"spec", "template", "spec", "containers")
	if len(containers) == 0 {
		t.Fatalf("%s has no containers", csiDaemonSet)
	}

	veilCSI := &unstructured.Unstructured{Object: containers[0].(map[string]any)}
	port, listens := only(t, service, "spec", "ports"), only(t, veilCSI, "ports")
	if port["targetPort"] != listens["containerPort"] {
		t.Errorf("the service leads to %v, veil-csi listens at %v", port, listens)
	}
}

// csiDaemonSet is the file of the driver's DaemonSet.
const csiDaemonSet = "csi/driver/daemonset.yaml"

// monitored returns the monitor and the service of a component.
func monitored(t *testing.T, component string) (monitor, service *unstructured.Unstructured) {
	t.Helper()
	dir := filepath.Join("components", component)
	return manifesttest.Read(t, filepath.Join(dir, "servicemonitor.yaml")).Object,
		manifesttest.Read(t, filepath.Join(dir, "service.yaml")).Object
}

// texts returns the map of strings at path, which must not be empty.
func texts(t *testing.T, o *unstructured.Unstructured, path ...string) labels.Set {
	t.Helper()
	m, _, err := unstructured.NestedStringMap(o.Object, path...)
	if err != nil || len(m) == 0 {
		t.Fatalf("%s: %v: %v, %v", o.GetName(), path, m, err)
	}
	return m
}

// only returns the one entry of the list at path.
func only(t *testing.T, o *unstructured.Unstructured, path ...string) map[string]any {
	t.Helper()
	list, _, err := unstructured.NestedSlice(o.Object, path...)
	if err != nil || len(list) != 1 {
		t.Fatalf("%s: %v: %v, %v: want one entry", o.GetName(), path, list, err)
	}
	return list[0].(map[string]any)
}
