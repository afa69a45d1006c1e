package node_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/yaml"

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
	dec := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(b), 4096)
	if err := dec.Decode(&m.object.Object); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	if err := dec.Decode(&map[string]any{}); !errors.Is(err, io.EOF) {
		t.Errorf("%s holds more than one object", path)
	}
	return m
}

// aPatch is a file whose YAML is a list: JSON patches of a component, and no object.
var aPatch = regexp.MustCompile(`\A(\s*(#.*)?\n)*- `)

// everyManifest is every object under manifests/, listed or not, and every list of patches, whose
// object is empty.
func everyManifest(t *testing.T) (objects, patches []manifest) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(root(t), "manifests"),
		func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}

			// Definitions of others are generated.
			if d.IsDir() && strings.HasSuffix(path, "snapshots/crd") {
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
				patches = append(patches, manifest{path: path, text: string(text),
					object: &unstructured.Unstructured{}})
			} else {
				objects = append(objects, readManifest(t, path))
			}

			return nil
		})
	if err != nil {
		t.Fatal(err)
	}

	if len(objects) == 0 || len(patches) == 0 {
		t.Fatalf("%d objects and %d lists of patches under manifests/", len(objects), len(patches))
	}
	return objects, patches
}

// Each line that grants a right or opens the host is preceded by a line that says why; in a patch,
// the operation is.
var needsReason = regexp.MustCompile(
	`^\s*(- apiGroups: .*|hostPath:.*|host(Network|PID|IPC): true|privileged: true|type: (Unconfined|spc_t)|- operator: Exists|` +
		`.*\bpath: \S*/(rules|capabilities|securityContext|tolerations|host(Network|PID|IPC))\b.*)$`)

func TestManifestsSayWhy(t *testing.T) {
	objects, patches := everyManifest(t)
	for _, m := range append(objects, patches...) {
		var before string
		adding := false
		for i, line := range strings.Split(m.text, "\n") {
			text := strings.TrimSpace(line)
			adding = text == "add:" || adding && (strings.HasPrefix(text, "- ") ||
				strings.HasPrefix(text, "#"))
			needs := needsReason.MatchString(line) || adding && strings.HasPrefix(text, "- ")
			// The rules of the policy say in its own comments and messages what they are for.
			if needs && m.object.GetKind() != "ValidatingAdmissionPolicy" &&
				!strings.HasPrefix(before, "#") {
				t.Errorf("%s:%d: no reason above %q", m.path, i+1, text)
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
		o := m.object
		if strings.HasPrefix(o.GetAPIVersion(), "kustomize") {
			continue
		}
		for _, l := range []string{"name", "component", "part-of"} {
			if o.GetLabels()["app.kubernetes.io/"+l] == "" {
				t.Errorf("%s has no label app.kubernetes.io/%s", m.path, l)
			}
		}
		if o.GetKind() != "CustomResourceDefinition" {
			noWildcard(t, m)
		}
		if o.GetKind() == "DaemonSet" {
			narrowContainers(t, m.path, o)
		}
	}
}

func noWildcard(t *testing.T, m manifest) {
	t.Helper()
	for i, line := range strings.Split(m.text, "\n") {
		code := strings.TrimSpace(line)
		if !strings.HasPrefix(code, "#") && strings.Contains(code, "*") {
			t.Errorf("%s:%d: %s", m.path, i+1, code)
		}
	}
}

func narrowContainers(t *testing.T, path string, ds *unstructured.Unstructured) {
	t.Helper()
	for _, list := range []string{"initContainers", "containers"} {
		containers, _, err := unstructured.NestedSlice(ds.Object, "spec", "template", "spec", list)
		if err != nil {
			t.Fatal(err)
		}
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

// To translate services veild gets no privilege that it does not have without: the component adds
// an argument, the tree of cgroups to read, memory, and the reading of two kinds of objects, and
// changes nothing else.
func TestManifestsOfServicesAddNoPrivilege(t *testing.T) {
	was, is := withComponent(t, "services")
	changed := slices.Sorted(maps.Keys(is))
	if diff := cmp.Diff([]string{"ClusterRole kubeveil-veild", "DaemonSet veild"},
		changed); diff != "" {
		t.Fatalf("the component changes (-want +got):\n%s", diff)
	}

	var veild, translating appsv1.DaemonSet
	typed(t, was["DaemonSet veild"], &veild)
	typed(t, is["DaemonSet veild"], &translating)
	pod := &veild.Spec.Template.Spec
	c := &pod.Containers[0]
	c.Args = append(c.Args, "-service-proxy=ebpf")
	c.VolumeMounts = append(c.VolumeMounts,
		corev1.VolumeMount{Name: "cgroup", MountPath: "/host/sys/fs/cgroup", ReadOnly: true})
	c.Resources.Limits[corev1.ResourceMemory] =
		*translating.Spec.Template.Spec.Containers[0].Resources.Limits.Memory()
	directory := corev1.HostPathDirectory
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: "cgroup",
		VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: "/sys/fs/cgroup", Type: &directory}}})
	if diff := cmp.Diff(veild, translating); diff != "" {
		t.Errorf("DaemonSet (-want +got):\n%s", diff)
	}
	narrowContainers(t, "DaemonSet veild with the component", is["DaemonSet veild"])

	var role, reading rbacv1.ClusterRole
	typed(t, was["ClusterRole kubeveil-veild"], &role)
	typed(t, is["ClusterRole kubeveil-veild"], &reading)
	reads := []string{"list", "watch"}
	role.Rules = append(role.Rules, rbacv1.PolicyRule{APIGroups: []string{""},
		Resources: []string{"services"}, Verbs: reads},
		rbacv1.PolicyRule{APIGroups: []string{"discovery.k8s.io"},
			Resources: []string{"endpointslices"}, Verbs: reads})
	if diff := cmp.Diff(role, reading); diff != "" {
		t.Errorf("ClusterRole (-want +got):\n%s", diff)
	}
}

// withComponent returns what a component patches of manifests/, by kind and name, as it was and as
// it is then. It knows kustomizations of patches in files, and no more.
func withComponent(t *testing.T, name string) (was, is map[string]*unstructured.Unstructured) {
	t.Helper()
	was, is = map[string]*unstructured.Unstructured{}, map[string]*unstructured.Unstructured{}
	for _, m := range kustomized(t, filepath.Join(root(t), "manifests")) {
		was[m.object.GetKind()+" "+m.object.GetName()] = m.object
	}

	dir := filepath.Join(root(t), "manifests/components", name)
	text := readManifest(t, filepath.Join(dir, "kustomization.yaml")).text
	var k struct {
		APIVersion, Kind string
		Patches          []struct {
			Path   string
			Target struct{ Kind, Name string }
		}
	}
	if err := yaml.UnmarshalStrict([]byte(text), &k); err != nil {
		t.Fatalf("kustomization of %s: %v", name, err)
	}

	for _, p := range k.Patches {
		key := p.Target.Kind + " " + p.Target.Name
		o := is[key]
		if o == nil {
			if was[key] == nil {
				t.Fatalf("%s: there is no %s", p.Path, key)
			}
			o = was[key].DeepCopy()
		}
		is[key] = patched(t, filepath.Join(dir, p.Path), o)
	}

	return was, is
}

// patched is an object with the JSON patches of a file.
func patched(t *testing.T, path string, o *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if text, err = yaml.YAMLToJSON(text); err != nil {
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

// typed converts an object strictly: a field that its kind does not have is an error.
func typed(t *testing.T, o *unstructured.Unstructured, into any) {
	t.Helper()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, into,
		true); err != nil {
		t.Fatal(err)
	}
}

// Definitions first, the policy before the RBAC that it restrains, the daemons last.
func TestManifestsInOrder(t *testing.T) {
	order := []string{"CustomResourceDefinition", "ValidatingAdmissionPolicy",
		"ValidatingAdmissionPolicyBinding", "ServiceAccount",
		"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ConfigMap", "DaemonSet"}
	for _, dir := range []string{"manifests", "manifests/cni"} {
		dir = filepath.Join(root(t), dir)
		if o, _, _ := unstructured.NestedString(readManifest(t,
			filepath.Join(dir, "kustomization.yaml")).object.Object, "sortOptions",
			"order"); o != "fifo" {
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

// veild rolls a tenth of the nodes at a time, and goes on only when the node's guard and tunnels
// are up; what carries packets is never rolled.
func TestDaemonsRollByTenths(t *testing.T) {
	var veild, worker appsv1.DaemonSet
	for file, ds := range map[string]*appsv1.DaemonSet{"cni/daemonset-veild.yaml": &veild,
		"cni/daemonset-veil-wg.yaml": &worker} {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(daemonSet(t, file).Object,
			ds); err != nil {
			t.Fatal(err)
		}
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
	if worker.Spec.UpdateStrategy.Type != appsv1.OnDeleteDaemonSetStrategyType {
		t.Errorf("veil-wg: update strategy %+v", worker.Spec.UpdateStrategy)
	}
}

// manifestsAccepted: every object is one that a real API server takes.
func manifestsAccepted(ctx context.Context, t *testing.T, l *lab.Lab) {
	all := append(kustomized(t, filepath.Join(root(t), "manifests")),
		kustomized(t, filepath.Join(root(t), "manifests/uninstall"))...)
	all = append(all, kustomized(t, filepath.Join(root(t), csiManifests))...)
	// The API server of the lab has no definition of ServiceMonitor.
	all = append(all, readManifest(t, filepath.Join(root(t),
		"manifests/components/servicemonitor/service.yaml")))
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
	opts := metav1.ApplyOptions{FieldManager: "lab", Force: true,
		DryRun: []string{metav1.DryRunAll}}
	c := l.Control.Dynamic.Resource(m.Resource)
	if m.Scope.Name() == meta.RESTScopeNameNamespace {
		_, err = c.Namespace(o.GetNamespace()).Apply(ctx, o.GetName(), o, opts)
	} else {
		_, err = c.Apply(ctx, o.GetName(), o, opts)
	}
	return err
}
