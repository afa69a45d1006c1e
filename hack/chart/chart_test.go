package chart

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// ofRelease is a release with images that are nowhere.
var ofRelease = Release{Version: "v0.1.0",
	Image: Image{"registry.example/kubeveil", "sha256:" + strings.Repeat("ab", 32)},
	CSI:   Image{"registry.example/kubeveil-csi", "sha256:" + strings.Repeat("cd", 32)}}

// settings are the values that select a component.
var settings = map[string]string{
	"policy":         "policy=kubernetes",
	"services":       "serviceProxy=ebpf",
	"api-path":       "apiServers={192.0.2.1:6443}",
	"servicemonitor": "metrics=serviceMonitor",
	"wireguard-go":   "engine=wireguard-go",
	"sites":          "sites.enabled=true",
	// Beside the components sites and servicemonitor, which have values of their own.
	"sites-servicemonitor": "sites.enabled=true",
	"cni-dirs": "cni.confDir=/var/lib/rancher/k3s/agent/etc/cni/net.d," +
		"cni.binDir=/var/lib/rancher/k3s/data/cni",
	"csi-servicemonitor": "metrics=serviceMonitor",
	"snapshots":          "volumes.snapshots=true",
	"kubelet-dir":        "volumes.kubeletDir=/var/lib/k0s/kubelet",
}

// bench is what tests of the chart need: kustomize, Helm, and the chart as an archive.
type bench struct {
	kustomize   Kustomize
	helm, chart string
}

func newBench(t *testing.T) bench {
	t.Helper()
	kubectl, err := filepath.Abs("../../out/bin/kubectl")
	errtest.Must(t, err)
	if _, err := os.Stat(kubectl); err != nil {
		kubectl = nettest.NeedProgram(t, "kubectl")
	}
	tree, err := filepath.Abs("../..")
	errtest.Must(t, err)
	dir := t.TempDir()
	for _, name := range []string{"CONFIG", "CACHE", "DATA"} {
		t.Setenv("HELM_"+name+"_HOME", filepath.Join(dir, name))
	}
	b := bench{Kustomize{tree, dir, []string{kubectl, "kustomize"}},
		nettest.BuildTool(t, tree, "helm", "helm.sh/helm/v4/cmd/helm"),
		filepath.Join(dir, "chart.tgz")}

	files, err := Files(t.Context(), ofRelease, b.kustomize)
	errtest.Must(t, err, Write(b.chart, Name, files))
	again, err := Files(t.Context(), ofRelease, b.kustomize)
	errtest.Must(t, err)
	if diff := cmp.Diff(files, again); diff != "" {
		t.Errorf("two charts differ:\n%s", diff)
	}

	return b
}

// template returns what helm template renders with values, or its complaint.
func (b bench) template(t *testing.T, flags ...string) (out string, good bool) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	c := exec.CommandContext(t.Context(), b.helm, append([]string{"template", "kubeveil", b.chart,
		"--namespace", "kube-system"}, flags...)...)
	c.Stdout, c.Stderr = &stdout, &stderr
	if err := c.Run(); err != nil {
		return stderr.String(), false
	}
	return stdout.String(), true
}

// kustomized returns the objects of kustomize by id, and their ids in order.
func (b bench) kustomized(t *testing.T, folder string, components ...string) (
	all map[string]string, order []string) {
	t.Helper()
	return byID(t, b.render(t, folder, components...), nil)
}

// render returns what kustomize renders with the images of the release.
func (b bench) render(t *testing.T, folder string, components ...string) string {
	t.Helper()
	image := func(name string, i Image) map[string]string {
		return map[string]string{"name": name, "newName": i.Name, "newTag": ofRelease.Version,
			"digest": i.Digest}
	}
	text, err := b.kustomize.Render(t.Context(), folder, components, map[string]any{
		"images": []any{image("localhost/kubeveil", ofRelease.Image),
			image("localhost/kubeveil-csi", ofRelease.CSI)}})
	errtest.Must(t, err)
	return text
}

// byID returns the objects in a text by kind, namespace and name, and these in order. each may
// change an object.
func byID(t *testing.T, text string, each func(id string, o map[string]any)) (
	all map[string]string, order []string) {
	t.Helper()
	all = map[string]string{}
	for part := range strings.SplitSeq("\n"+text, "\n---\n") {
		var o map[string]any
		errtest.Must(t, yaml.Unmarshal([]byte(part), &o))
		if o == nil {
			continue
		}
		m := o["metadata"].(map[string]any)
		id := fmt.Sprint(o["kind"], " ", m["namespace"], " ", m["name"])
		if all[id] != "" {
			t.Errorf("%s is there twice", id)
		}
		if each != nil {
			each(id, o)
		}
		sorted, err := yaml.Marshal(o)
		errtest.Must(t, err)
		all[id] = string(sorted)
		order = append(order, id)
	}
	return all, order
}

// withoutHooks takes the annotations of hooks from an object, and puts its weight into weights.
func withoutHooks(t *testing.T, weights map[string]int) func(id string, o map[string]any) {
	return func(id string, o map[string]any) {
		m := o["metadata"].(map[string]any)
		annotations, _ := m["annotations"].(map[string]any)
		weight := annotations["helm.sh/hook-weight"]
		if isHook := weight != nil; isHook != first[o["kind"].(string)] {
			t.Errorf("%s: is a hook: %t", id, isHook)
		}
		if weight == nil {
			return
		}
		if annotations["helm.sh/hook"] != "pre-install,pre-upgrade" ||
			annotations["helm.sh/hook-delete-policy"] != "never" {
			t.Errorf("%s: %v", id, annotations)
		}

		n, err := strconv.Atoi(weight.(string))
		errtest.Must(t, err)
		weights[id] = n
		maps.DeleteFunc(annotations, func(key string, _ any) bool {
			return strings.HasPrefix(key, "helm.sh/hook")
		})
		if len(annotations) == 0 {
			delete(m, "annotations")
		}
	}
}

func TestChart(t *testing.T) {
	b := newBench(t)
	compared := map[string]bool{}
	for name, tc := range map[string]struct{ network, volumes []string }{
		"defaults":           {nil, nil},
		"policy":             {[]string{"policy"}, nil},
		"services":           {[]string{"services"}, nil},
		"api-path":           {[]string{"api-path"}, nil},
		"servicemonitor":     {[]string{"servicemonitor"}, nil},
		"wireguard-go":       {[]string{"wireguard-go"}, nil},
		"sites":              {[]string{"sites"}, nil},
		"sites, metrics":     {[]string{"servicemonitor", "sites", "sites-servicemonitor"}, nil},
		"cni-dirs":           {[]string{"cni-dirs"}, nil},
		"volumes":            {nil, []string{}},
		"csi-servicemonitor": {[]string{"servicemonitor"}, []string{"csi-servicemonitor"}},
		"snapshots":          {nil, []string{"snapshots"}},
		"kubelet-dir":        {nil, []string{"kubelet-dir"}},
		"all": {[]string{"policy", "services", "servicemonitor", "sites", "sites-servicemonitor",
			"wireguard-go", "cni-dirs"}, []string{"csi-servicemonitor", "kubelet-dir", "snapshots"}},
		"all, beside kube-proxy": {[]string{"policy", "api-path", "servicemonitor", "wireguard-go",
			"cni-dirs"}, []string{"csi-servicemonitor", "kubelet-dir", "snapshots"}},
	} {
		for _, c := range slices.Concat(tc.network, tc.volumes) {
			compared[c] = settings[c] != ""
		}
		t.Run(name, func(t *testing.T) { b.checkEqual(t, tc.network, tc.volumes) })
	}
	folders, err := os.ReadDir(filepath.Join(b.kustomize.Tree, "manifests/components"))
	errtest.Must(t, err)
	for _, f := range folders {
		if !compared[f.Name()] {
			t.Errorf("no case compares the component %s by a value of its own", f.Name())
		}
	}

	t.Run("ranges", b.checkRanges)
	t.Run("other keys", b.checkKeys)
	t.Run("refused values", b.checkRefusals)
	t.Run("documents", b.checkDocuments)
	t.Run("lint", func(t *testing.T) {
		out, err := exec.CommandContext(t.Context(), b.helm, "lint", "--strict",
			b.chart).CombinedOutput()
		if err != nil {
			t.Errorf("helm lint: %v\n%s", err, out)
		}
	})
}

// checkEqual checks that helm template with the values of components renders what kustomize renders
// with these components. volumes is nil without encrypted volumes.
func (b bench) checkEqual(t *testing.T, network, volumes []string) {
	want, order := b.kustomized(t, "manifests", network...)
	var flags []string
	if volumes != nil {
		objects, more := b.kustomized(t, "manifests/csi", volumes...)
		maps.Copy(want, objects)
		order = append(order, more...)
		flags = append(flags, "--set", "volumes.enabled=true")
	}
	for _, c := range slices.Concat(network, volumes) {
		flags = append(flags, "--set", settings[c])
	}
	if slices.Contains(network, "api-path") {
		const id = "ConfigMap kube-system kubeveil"
		want[id] = strings.Replace(want[id], "# services: {apiServers: [192.0.2.1:6443]}",
			`services: {"apiServers":["192.0.2.1:6443"]}`, 1)
	}

	text, good := b.template(t, flags...)
	if !good {
		t.Fatal(text)
	}
	weights := map[string]int{}
	got, _ := byID(t, text, withoutHooks(t, weights))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("kustomize and Helm (-want +got):\n%s", diff)
	}

	last := -1
	for _, id := range order {
		if weight, isHook := weights[id]; isHook && weight <= last {
			t.Errorf("the weight of %s is %d, after %d", id, weight, last)
		} else if isHook {
			last = weight
		}
	}
	if last < 2 {
		t.Error("the restraint is not in hooks")
	}
}

func (b bench) checkRefusals(t *testing.T) {
	for value, want := range map[string]string{
		"polcy=kubernetes":              "polcy",
		"sites={b}":                     "sites",
		"sites.enabled=yes":             "enabled",
		"policy=calico":                 "policy",
		"serviceProxy=iptables":         "serviceProxy",
		"clusterRanges={10.244.0.0/16}": "serviceRanges",
		"nodeRanges={192.0.2.0}":        "nodeRanges",
		"image.digest=":                 "digest",
		"image.pullPolicy=Always":       "pullPolicy",
		"cni.binDir=opt":                "binDir",
		"cni.binDir=/opt/../cni":        "binDir",
		"volumes.kubletDir=/var/lib":    "kubletDir",
		"apiServers={example.com:6443}": "apiServers",
		"config.mut=9000":               "mut",
		"config.policy=kubernetes":      "policy",
		"config.tunnel.mode=fast":       "mode",
		"config.sites[0].nam=b":         "nam",
	} {
		if out, good := b.template(t, "--set", value); good || !strings.Contains(out, want) {
			t.Errorf("%s: accepted %t, want a refusal with %q:\n%.500s", value, good, want, out)
		}
	}
}
