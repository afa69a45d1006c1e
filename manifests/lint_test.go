package manifests_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/manifesttest"
)

// aPatch is a file whose YAML is a list: JSON patches of a component, and no object.
var aPatch = regexp.MustCompile(`\A(\s*(#.*)?\n)*- `)

// everyManifest is every object under manifests/, listed or not, and every list of patches, whose
// object is empty.
func everyManifest(t *testing.T) (objects, patches []manifesttest.Manifest) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}

		// Definitions of others are generated.
		if d.IsDir() && (strings.HasSuffix(path, "snapshots/crd") ||
			strings.HasSuffix(path, "sites/crd")) {
			return fs.SkipDir
		}
		if filepath.Ext(path) != ".yaml" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}

		if aPatch.Match(text) {
			patches = append(patches, manifesttest.Manifest{Path: path, Text: string(text),
				Object: &unstructured.Unstructured{}})
		} else {
			objects = append(objects, manifesttest.Read(t, path))
		}

		return nil
	})
	errtest.Must(t, err)

	if len(objects) == 0 || len(patches) == 0 {
		t.Fatalf("%d objects and %d lists of patches under manifests/", len(objects), len(patches))
	}
	return objects, patches
}

// needsReason matches the lines that grant a right or open the host. A comment with the reason must
// stand above each of them; in a patch, above the operation.
var needsReason = regexp.MustCompile(
	`^\s*(- apiGroups: .*|hostPath:.*|host(Network|PID|IPC): true|privileged: true|type: (Unconfined|spc_t)|- operator: Exists|` +
		`.*\bpath: \S*/(rules|capabilities|securityContext|tolerations|host(Network|PID|IPC))\b.*)$`)

func TestManifestsSayWhy(t *testing.T) {
	objects, patches := everyManifest(t)
	for _, m := range append(objects, patches...) {
		var before string
		adding := false
		for i, line := range strings.Split(m.Text, "\n") {
			text := strings.TrimSpace(line)
			adding = text == "add:" || adding && (strings.HasPrefix(text, "- ") ||
				strings.HasPrefix(text, "#"))
			needs := needsReason.MatchString(line) || adding && strings.HasPrefix(text, "- ")
			// The rules of a ValidatingAdmissionPolicy have their reasons in comments and messages.
			if needs && m.Object.GetKind() != "ValidatingAdmissionPolicy" &&
				!strings.HasPrefix(before, "#") {
				t.Errorf("%s:%d: no reason above %q", m.Path, i+1, text)
			}
			if !strings.HasPrefix(text, "- op: ") {
				before = text
			}
		}
	}
}

// Labels on every object; no right by wildcard; no container with more than it was given a reason
// for.
func TestManifestsAreNarrow(t *testing.T) {
	objects, patches := everyManifest(t)
	for _, m := range patches {
		noWildcard(t, m)
	}
	for _, m := range objects {
		o := m.Object
		if strings.HasPrefix(o.GetAPIVersion(), "kustomize") {
			continue
		}
		for _, l := range []string{"name", "component", "part-of"} {
			if o.GetLabels()["app.kubernetes.io/"+l] == "" {
				t.Errorf("%s has no label app.kubernetes.io/%s", m.Path, l)
			}
		}
		if o.GetKind() != "CustomResourceDefinition" {
			noWildcard(t, m)
		}
		if o.GetKind() == "DaemonSet" {
			narrowContainers(t, m.Path, o)
		}
	}
}

// On nodes with SELinux a container of the default type may neither read nor write paths of the
// host: each pod with one has the type that may. No machine of the tests has SELinux.
func TestPodsWithHostPathsAreLabelledForSELinux(t *testing.T) {
	objects, _ := everyManifest(t)
	found := 0
	for _, m := range objects {
		pod, _, _ := unstructured.NestedMap(m.Object.Object, "spec", "template", "spec")
		volumes, _, _ := unstructured.NestedSlice(pod, "volumes")
		if !slices.ContainsFunc(volumes, func(v any) bool {
			return v.(map[string]any)["hostPath"] != nil
		}) {
			continue
		}

		found++
		for field, want := range map[string]string{"type": "spc_t", "level": "s0"} {
			got, _, _ := unstructured.NestedString(pod, "securityContext", "seLinuxOptions", field)
			if got != want {
				t.Errorf("%s: seLinuxOptions.%s is %q, want %q", m.Path, field, got, want)
			}
		}
	}
	if found < 5 {
		t.Errorf("%d manifests with paths of the host were looked at, want 5 or more", found)
	}
}

func noWildcard(t *testing.T, m manifesttest.Manifest) {
	t.Helper()
	for i, line := range strings.Split(m.Text, "\n") {
		code := strings.TrimSpace(line)
		if !strings.HasPrefix(code, "#") && strings.Contains(code, "*") {
			t.Errorf("%s:%d: %s", m.Path, i+1, code)
		}
	}
}

func narrowContainers(t *testing.T, path string, ds *unstructured.Unstructured) {
	t.Helper()
	for _, list := range []string{"initContainers", "containers"} {
		containers, _, err := unstructured.NestedSlice(ds.Object, "spec", "template", "spec", list)
		errtest.Must(t, err)
		for _, c := range containers {
			narrow(t, path, c.(map[string]any))
		}
	}
}

// mayBePrivileged is the one container that is, because no set of capabilities would do; the reason
// is above the line.
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
	for _, f := range [][]string{{"requests", "cpu"}, {"requests", "memory"},
		{"limits", "memory"}} {
		if v, ok, _ := unstructured.NestedString(c, append([]string{"resources"}, f...)...); !ok ||
			v == "" {
			t.Errorf("%s: container %s has no %v", path, c["name"], f)
		}
	}
}

// Definitions first, the policy before the RBAC that it restrains, the daemons last.
func TestManifestsInOrder(t *testing.T) {
	order := []string{"CustomResourceDefinition", "ValidatingAdmissionPolicy",
		"ValidatingAdmissionPolicyBinding", "ServiceAccount",
		"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ConfigMap", "DaemonSet"}
	for _, dir := range []string{".", "cni"} {
		if o, _, _ := unstructured.NestedString(manifesttest.Read(t,
			filepath.Join(dir, "kustomization.yaml")).Object.Object, "sortOptions",
			"order"); o != "fifo" {
			t.Errorf("%s: order %q: kustomize would sort by kinds that it knows", dir, o)
		}
		last := 0
		for _, m := range manifesttest.Kustomized(t, dir) {
			at := slices.Index(order, m.Object.GetKind())
			if at < last {
				t.Errorf("%s is out of order", m.Path)
			}
			last = max(at, last)
		}
	}
}

// veild rolls a tenth of the nodes at a time, and goes on only when the node's guard and tunnels
// are up; what carries packets and hands nothing over is never rolled.
func TestDaemonsRollByTenths(t *testing.T) {
	var veild, worker appsv1.DaemonSet
	for file, ds := range map[string]*appsv1.DaemonSet{"cni/daemonset-veild.yaml": &veild,
		"cni/daemonset-veil-wg.yaml": &worker} {
		typed(t, manifesttest.Read(t, file).Object, ds)
	}
	update := veild.Spec.UpdateStrategy
	if update.Type != appsv1.RollingUpdateDaemonSetStrategyType ||
		update.RollingUpdate.MaxUnavailable.String() != "10%" ||
		update.RollingUpdate.MaxSurge != nil {
		t.Errorf("veild: update strategy %+v", update)
	}
	if veild.Spec.MinReadySeconds == 0 {
		t.Error("veild: one that ends right after it was ready counts as updated")
	}
	probe := veild.Spec.Template.Spec.Containers[0].ReadinessProbe
	if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != "/readyz" {
		t.Errorf("veild: readiness probe %+v", probe)
	}

	update = worker.Spec.UpdateStrategy
	if update.Type != appsv1.RollingUpdateDaemonSetStrategyType ||
		update.RollingUpdate.MaxSurge.String() != "1" ||
		update.RollingUpdate.MaxUnavailable.String() != "0" {
		t.Errorf("veil-wg: update strategy %+v", update)
	}
	c := worker.Spec.Template.Spec.Containers[0]
	if c.ReadinessProbe == nil || c.ReadinessProbe.Exec == nil {
		t.Errorf("veil-wg: readiness probe %+v: the old pod would be ended at once", c.ReadinessProbe)
	}
	if len(c.Ports) > 0 {
		t.Errorf("veil-wg: ports %v: two pods of a node could not have them", c.Ports)
	}
}
