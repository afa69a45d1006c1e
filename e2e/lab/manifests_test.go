package lab_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/restmapper"

	"github.com/kubeveil/kubeveil/e2e/lab"
)

// manifest is a file of manifests/ with its one object.
type manifest struct {
	path   string
	text   string
	object *unstructured.Unstructured
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := lab.Root()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// kustomized reads what a kustomization lists, in its order. It knows what ours use and no more:
// resources, in order fifo.
func kustomized(t *testing.T, dir string) []manifest {
	t.Helper()
	var out []manifest
	k := readManifest(t, filepath.Join(dir, "kustomization.yaml")).object
	resources, _, err := unstructured.NestedStringSlice(k.Object, "resources")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range resources {
		path := filepath.Join(dir, r)
		if filepath.Ext(path) == ".yaml" {
			out = append(out, readManifest(t, path))
		} else {
			out = append(out, kustomized(t, path)...)
		}
	}
	return out
}

func readManifest(t *testing.T, path string) manifest {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	m := manifest{path: path, text: string(b), object: &unstructured.Unstructured{}}
	dec := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(b), 4096)
	if err := dec.Decode(&m.object.Object); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	if err := dec.Decode(&map[string]any{}); !errors.Is(err, io.EOF) {
		t.Errorf("%s holds more than one object", path)
	}
	return m
}

// everyManifest is every object under manifests/, listed or not.
func everyManifest(t *testing.T) []manifest {
	t.Helper()
	var out []manifest
	err := filepath.WalkDir(filepath.Join(root(t), "manifests"), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		// Definitions of others are generated.
		if d.IsDir() && strings.HasSuffix(path, "snapshots/crd") {
			return fs.SkipDir
		}
		// A JSON patch is a list and no object.
		if filepath.Ext(path) == ".yaml" && !slices.Contains([]string{"listen.yaml", "translate.yaml", "rights.yaml"}, filepath.Base(path)) {
			out = append(out, readManifest(t, path))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// What gives a right or opens the host is preceded by a line that says why.
var needsReason = regexp.MustCompile(`^\s*(- apiGroups: .*|hostPath:.*|host(Network|PID|IPC): true|privileged: true|type: (Unconfined|spc_t)|- operator: Exists)$`)

func TestManifestsSayWhy(t *testing.T) {
	for _, m := range everyManifest(t) {
		var before string
		adding := false
		for i, line := range strings.Split(m.text, "\n") {
			text := strings.TrimSpace(line)
			adding = text == "add:" || adding && (strings.HasPrefix(text, "- ") || strings.HasPrefix(text, "#"))
			needs := needsReason.MatchString(line) || adding && strings.HasPrefix(text, "- ")
			// The rules of the policy say in its own comments and messages what they are for.
			if needs && m.object.GetKind() != "ValidatingAdmissionPolicy" && !strings.HasPrefix(before, "#") {
				t.Errorf("%s:%d: no reason above %q", m.path, i+1, text)
			}
			before = text
		}
	}
}

// Labels on every object; no right by wildcard; no container with more than it was given a reason for.
func TestManifestsAreNarrow(t *testing.T) {
	for _, m := range everyManifest(t) {
		o := m.object
		if strings.HasPrefix(o.GetAPIVersion(), "kustomize") {
			continue
		}
		for _, l := range []string{"name", "component", "part-of"} {
			if o.GetLabels()["app.kubernetes.io/"+l] == "" {
				t.Errorf("%s has no label app.kubernetes.io/%s", m.path, l)
			}
		}
		for i, line := range strings.Split(m.text, "\n") {
			code := strings.TrimSpace(line)
			if !strings.HasPrefix(code, "#") && o.GetKind() != "CustomResourceDefinition" && strings.Contains(code, "*") {
				t.Errorf("%s:%d: %s", m.path, i+1, code)
			}
		}
		if o.GetKind() != "DaemonSet" {
			continue
		}
		for _, list := range []string{"initContainers", "containers"} {
			containers, _, err := unstructured.NestedSlice(o.Object, "spec", "template", "spec", list)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range containers {
				narrow(t, m.path, c.(map[string]any))
			}
		}
	}
}

// mayBePrivileged is the one container that is, because no set of capabilities would do; the reason is above the line.
const mayBePrivileged = "veil-csi"

func narrow(t *testing.T, path string, c map[string]any) {
	t.Helper()
	drop, _, _ := unstructured.NestedStringSlice(c, "securityContext", "capabilities", "drop")
	readOnly, _, _ := unstructured.NestedBool(c, "securityContext", "readOnlyRootFilesystem")
	escalation, set, _ := unstructured.NestedBool(c, "securityContext", "allowPrivilegeEscalation")
	privileged, _, _ := unstructured.NestedBool(c, "securityContext", "privileged")
	narrow := slices.Equal(drop, []string{"ALL"}) && set && !escalation && !privileged
	if !readOnly || !narrow && !(privileged && c["name"] == mayBePrivileged) {
		t.Errorf("%s: container %s: security context %v", path, c["name"], c["securityContext"])
	}
	for _, f := range [][]string{{"requests", "cpu"}, {"requests", "memory"}, {"limits", "memory"}} {
		if v, ok, _ := unstructured.NestedString(c, append([]string{"resources"}, f...)...); !ok || v == "" {
			t.Errorf("%s: container %s has no %v", path, c["name"], f)
		}
	}
}

// Definitions first, the policy before the RBAC that it restrains, the daemons last.
func TestManifestsInOrder(t *testing.T) {
	order := []string{"CustomResourceDefinition", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ServiceAccount",
		"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ConfigMap", "DaemonSet"}
	for _, dir := range []string{"manifests", "manifests/cni"} {
		dir = filepath.Join(root(t), dir)
		if o, _, _ := unstructured.NestedString(readManifest(t, filepath.Join(dir, "kustomization.yaml")).object.Object, "sortOptions", "order"); o != "fifo" {
			t.Errorf("%s: order %q: kustomize would sort by kinds that it knows", dir, o)
		}
		last := 0
		for _, m := range kustomized(t, dir) {
			at := slices.Index(order, m.object.GetKind())
			if at < last {
				t.Errorf("%s is out of order", m.path)
			}
			last = max(at, last)
		}
	}
}

// veild rolls one node at a time, and goes on only when the node's guard and tunnels are up; what carries packets is never
// rolled.
func TestDaemonsRollOneByOne(t *testing.T) {
	var veild, worker appsv1.DaemonSet
	for file, ds := range map[string]*appsv1.DaemonSet{"cni/daemonset-veild.yaml": &veild, "cni/daemonset-veil-wg.yaml": &worker} {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(daemonSet(t, file).Object, ds); err != nil {
			t.Fatal(err)
		}
	}
	update := veild.Spec.UpdateStrategy
	if update.Type != appsv1.RollingUpdateDaemonSetStrategyType || update.RollingUpdate.MaxUnavailable.String() != "1" || update.RollingUpdate.MaxSurge != nil {
		t.Errorf("veild: update strategy %+v", update)
	}
	if veild.Spec.MinReadySeconds == 0 {
		t.Error("veild: one that ends right after it was ready counts as updated")
	}
	probe := veild.Spec.Template.Spec.Containers[0].ReadinessProbe
	if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != "/readyz" {
		t.Errorf("veild: readiness probe %+v", probe)
	}
	if worker.Spec.UpdateStrategy.Type != appsv1.OnDeleteDaemonSetStrategyType {
		t.Errorf("veil-wg: update strategy %+v", worker.Spec.UpdateStrategy)
	}
}

// manifestsAccepted: every object is one that a real API server takes.
func manifestsAccepted(ctx context.Context, t *testing.T, l *lab.Lab) {
	all := append(kustomized(t, filepath.Join(root(t), "manifests")), kustomized(t, filepath.Join(root(t), "manifests/uninstall"))...)
	all = append(all, kustomized(t, filepath.Join(root(t), csiManifests))...)
	// The API server of the lab has no definition of ServiceMonitor.
	all = append(all, readManifest(t, filepath.Join(root(t), "manifests/components/servicemonitor/service.yaml")))
	for _, m := range all {
		t.Run(m.object.GetKind()+" "+m.object.GetName(), func(t *testing.T) {
			if err := dryApply(ctx, l, m.object); err != nil {
				t.Error(err)
			}
		})
	}
}

func dryApply(ctx context.Context, l *lab.Lab, o *unstructured.Unstructured) error {
	groups, err := restmapper.GetAPIGroupResources(l.Control.Client.Discovery())
	if err != nil {
		return err
	}
	gvk := o.GroupVersionKind()
	m, err := restmapper.NewDiscoveryRESTMapper(groups).RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return err
	}
	opts := metav1.ApplyOptions{FieldManager: "lab", Force: true, DryRun: []string{metav1.DryRunAll}}
	c := l.Control.Dynamic.Resource(m.Resource)
	if m.Scope.Name() == meta.RESTScopeNameNamespace {
		_, err = c.Namespace(o.GetNamespace()).Apply(ctx, o.GetName(), o, opts)
	} else {
		_, err = c.Apply(ctx, o.GetName(), o, opts)
	}
	return err
}
