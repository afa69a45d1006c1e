package manifests_test

import (
	"bytes"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/manifesttest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

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
	c.Args = append(c.Args, "--service-proxy=ebpf")
	c.VolumeMounts = append(c.VolumeMounts,
		corev1.VolumeMount{Name: "cgroup", MountPath: "/host/sys/fs/cgroup", ReadOnly: true})
	c.Resources.Limits[corev1.ResourceMemory] =
		*translating.Spec.Template.Spec.Containers[0].Resources.Limits.Memory()
	// The soft limit of memory follows the container's limit.
	i := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "GOMEMLIMIT" })
	c.Env[i].Value = "256MiB"
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

// For the API path beside another proxy veild gets the tree of cgroups to read and the reading of
// one object.
func TestManifestsOfTheAPIPathAddNoPrivilege(t *testing.T) {
	was, is := withComponent(t, "api-path")
	const role = "Role kubeveil-veild-apiserver"
	if changed := slices.Sorted(maps.Keys(is)); !slices.Equal(changed,
		[]string{"DaemonSet veild", role}) {
		t.Fatalf("the component changes %v", changed)
	}

	var want, got appsv1.DaemonSet
	typed(t, was["DaemonSet veild"], &want)
	typed(t, is["DaemonSet veild"], &got)
	pod, directory := &want.Spec.Template.Spec, corev1.HostPathDirectory
	pod.Containers[0].VolumeMounts = append(pod.Containers[0].VolumeMounts,
		corev1.VolumeMount{Name: "cgroup", MountPath: "/host/sys/fs/cgroup", ReadOnly: true})
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: "cgroup",
		VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: "/sys/fs/cgroup", Type: &directory}}})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("DaemonSet (-want +got):\n%s", diff)
	}
	narrowContainers(t, "DaemonSet veild with the component", is["DaemonSet veild"])

	var before, after rbacv1.Role
	typed(t, was[role], &before)
	typed(t, is[role], &after)
	before.Rules = append(before.Rules, rbacv1.PolicyRule{APIGroups: []string{""},
		Resources: []string{"services"}, ResourceNames: []string{"kubernetes"},
		Verbs: []string{"list", "watch"}})
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("Role (-want +got):\n%s", diff)
	}
}

// With wireguard-go, which hands nothing over, the operator chooses when flows are interrupted.
func TestManifestsOfWireGuardGoDoNotRoll(t *testing.T) {
	was, is := withComponent(t, "wireguard-go")
	if changed := slices.Sorted(maps.Keys(is)); !slices.Equal(changed,
		[]string{"DaemonSet veil-wg"}) {
		t.Fatalf("the component changes %v", changed)
	}
	var want, got appsv1.DaemonSet
	typed(t, was["DaemonSet veil-wg"], &want)
	typed(t, is["DaemonSet veil-wg"], &got)
	want.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{
		Type: appsv1.OnDeleteDaemonSetStrategyType}
	want.Spec.Template.Spec.Containers[0].Args = []string{"--engine=wireguard-go"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("DaemonSet (-want +got):\n%s", diff)
	}
}

// withComponent returns what a component patches of manifests/, by kind and name, as it was and as
// it is then. It knows kustomizations of patches in files, and no more.
func withComponent(t *testing.T, name string) (was, is map[string]*unstructured.Unstructured) {
	t.Helper()
	was, is = map[string]*unstructured.Unstructured{}, map[string]*unstructured.Unstructured{}
	for _, m := range manifesttest.Kustomized(t, ".") {
		was[m.Object.GetKind()+" "+m.Object.GetName()] = m.Object
	}

	dir := filepath.Join("components", name)
	text := manifesttest.Read(t, filepath.Join(dir, "kustomization.yaml")).Text
	var k struct {
		APIVersion, Kind string
		Resources        []string
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
		is[key] = manifesttest.Patched(t, filepath.Join(dir, p.Path), o)
	}

	return was, is
}

// typed converts an object strictly: a field that its kind does not have is an error.
func typed(t *testing.T, o *unstructured.Unstructured, into any) {
	t.Helper()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, into,
		true); err != nil {
		t.Fatal(err)
	}
}

// rendered is a DaemonSet as kustomize gives it for a cluster's own kustomization: a folder of
// manifests, and perhaps a component.
func rendered(t *testing.T, name, folder string, components ...string) *unstructured.Unstructured {
	t.Helper()
	kubectl := "../out/bin/kubectl"
	if _, err := os.Stat(kubectl); err != nil {
		nettest.NeedProgram(t, "kubectl")
		kubectl = "kubectl"
	}

	dir := t.TempDir()
	relative := func(path string) string {
		from, err := filepath.Abs(path)
		errtest.Must(t, err)
		r, err := filepath.Rel(dir, from)
		errtest.Must(t, err)
		return r
	}

	own := map[string]any{"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
		"resources": []string{relative(folder)}}
	for _, c := range components {
		own["components"] = []string{relative(filepath.Join("components", c))}
	}

	text, err := yaml.Marshal(own)
	errtest.Must(t, err)
	filetest.Write(t, filepath.Join(dir, "kustomization.yaml"), text, 0o600)

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
			t.Fatalf("no DaemonSet %s: %v", name, err)
		}
		if o.GetKind() == "DaemonSet" && o.GetName() == name {
			return o
		}
	}
}

// The component for kubelets elsewhere names the folder in one place; no other is forgotten, and
// nothing but those is changed.
func TestKubeletDirComponent(t *testing.T) {
	const usual, elsewhere = "/var/lib/kubelet", "/var/lib/k0s/kubelet"
	component := manifesttest.Read(t, "components/kubelet-dir/kustomization.yaml")
	if n := strings.Count(component.Text, elsewhere); n != 1 {
		t.Errorf("the folder is in %d places", n)
	}

	got := textOf(t, rendered(t, "veil-csi", "csi", "kubelet-dir"))
	want := textOf(t, rendered(t, "veil-csi", "csi"))
	if strings.Contains(got, usual) {
		t.Errorf("%s is left:\n%s", usual, got)
	}

	// Two arguments, and the variable that they name, are added.
	added := []string{"- --endpoint=$(KUBELET_DIR)/plugins/csi.kubeveil.io/csi.sock",
		"- --registration=$(KUBELET_DIR)/plugins_registry", "- name: KUBELET_DIR",
		"value: " + usual}
	lines := strings.Split(strings.ReplaceAll(got, elsewhere, usual), "\n")
	kept := slices.DeleteFunc(slices.Clone(lines), func(line string) bool {
		return slices.Contains(added, strings.TrimSpace(line))
	})
	if len(lines) != len(kept)+len(added) || strings.Join(kept, "\n") != want {
		t.Errorf("more was changed than the folder:\n%s", got)
	}
}

func textOf(t *testing.T, o *unstructured.Unstructured) string {
	t.Helper()
	b, err := yaml.Marshal(o.Object)
	errtest.Must(t, err)
	return string(b)
}

// The component for runtimes that look for CNI elsewhere names each folder once for the daemon and
// once for the clean-up, and changes nothing else.
func TestCNIDirsComponent(t *testing.T) {
	elsewhere := map[string]string{"/var/lib/rancher/k3s/agent/etc/cni/net.d": "/etc/cni/net.d",
		"/var/lib/rancher/k3s/data/cni": "/opt/cni/bin"}
	component := manifesttest.Read(t, "components/cni-dirs/kustomization.yaml")
	for name, folder := range map[string]string{"veild": ".", "kubeveil-cleanup": "uninstall"} {
		got := textOf(t, rendered(t, name, folder, "cni-dirs"))
		for dir, usual := range elsewhere {
			in, all := strings.Count(got, dir), strings.Count(component.Text, dir)
			if in != 1 || all != 2 {
				t.Errorf("%s is in %d places of the component, and %d of %s", dir, all, in, name)
			}
			got = strings.Replace(got, dir, usual, 1)
		}
		if diff := cmp.Diff(textOf(t, rendered(t, name, folder)), got); diff != "" {
			t.Errorf("%s: more was changed than the folders:\n%s", name, diff)
		}
	}
	without := textOf(t, rendered(t, "veil-wg", "."))
	if diff := cmp.Diff(without, textOf(t, rendered(t, "veil-wg", ".", "cni-dirs"))); diff != "" {
		t.Errorf("veil-wg was changed:\n%s", diff)
	}
}
