package chart

import (
	"bytes"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/config"
)

// configuration returns veild's configuration in the ConfigMap among objects.
func configuration(t *testing.T, objects map[string]string) (c map[string]any) {
	t.Helper()
	var m struct{ Data map[string]string }
	errtest.Must(t, yaml.Unmarshal([]byte(objects["ConfigMap kube-system kubeveil"]), &m))
	errtest.Must(t, yaml.UnmarshalStrict([]byte(m.Data["veild.yaml"]), &c))
	return c
}

// checkRanges checks the configuration of veild with values that replace examples, and a folder
// that no component names.
func (b bench) checkRanges(t *testing.T) {
	text, good := b.template(t, "--set-json", `clusterRanges=["10.244.0.0/16","fd00:10:244::/56"]`,
		"--set-json", `serviceRanges=["10.96.0.0/12"]`, "--set-json", `nodeRanges=["192.0.2.0/24"]`,
		"--set-json", `outside=[]`, "--set", "cni.binDir=/usr/libexec/cni")
	if !good {
		t.Fatal(text)
	}
	objects, _ := byID(t, text, nil)
	got := configuration(t, objects)
	want := map[string]any{"clusterRanges": []any{"10.244.0.0/16", "fd00:10:244::/56"},
		"serviceRanges": []any{"10.96.0.0/12"}, "nodeRanges": []any{"192.0.2.0/24"},
		"outside": []any{}, "source": got["source"]}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	veild := objects["DaemonSet kube-system veild"]
	if !strings.Contains(veild, "path: /usr/libexec/cni\n") ||
		!strings.Contains(veild, "path: /etc/cni/net.d\n") {
		t.Error(veild)
	}
}

// checkKeys checks the configuration of veild with keys that have no value of their own.
func (b bench) checkKeys(t *testing.T) {
	for more, want := range map[string]map[string]any{
		`{"mtu": 9000, "tunnel": {"keepalive": 25}}`: {"mtu": 9000.0,
			"tunnel": map[string]any{"keepalive": 25.0}},
		`{"logLevel": "debug", "services": {"limits": {"backendSlots": 8388608}}}`: {
			"logLevel": "debug", "services": map[string]any{"apiServers": []any{},
				"limits": map[string]any{"backendSlots": 8388608.0}}},
		`{"services": {"apiFrontends": ["192.0.2.9:6443"]}}`: {"services": map[string]any{
			"apiServers": []any{}, "apiFrontends": []any{"192.0.2.9:6443"}}},
	} {
		text, good := b.template(t, "--set-json", "config="+more)
		if !good {
			t.Fatal(text)
		}
		objects, _ := byID(t, text, nil)
		got := configuration(t, objects)
		delete(got, "kubeadmConfig")
		delete(got, "source")
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", more, diff)
		}
		// Frontends need the tree of cgroups, which the component api-path mounts.
		if strings.Contains(more, "apiFrontends") !=
			strings.Contains(objects["DaemonSet kube-system veild"], "/sys/fs/cgroup") {
			t.Errorf("%s: the component api-path:\n%s", more, objects["DaemonSet kube-system veild"])
		}
	}

	text, good := b.template(t, "--set", "apiServers={192.0.2.1:6443}", "--set-json",
		`config={"services": {"hostRouting": "kernel"}}`)
	if !good {
		t.Fatal(text)
	}
	objects, _ := byID(t, text, nil)
	want := map[string]any{"apiServers": []any{"192.0.2.1:6443"}, "hostRouting": "kernel"}
	if diff := cmp.Diff(want, configuration(t, objects)["services"]); diff != "" {
		t.Errorf("with API servers (-want +got):\n%s", diff)
	}
}

// Each value is in the schema, so that none is refused because the schema forgets it.
func TestSchemaHasEachValue(t *testing.T) {
	var schema struct {
		Required   []string
		Properties map[string]any
	}
	errtest.Must(t, yaml.Unmarshal(filetest.Read(t, "files/values.schema.json"), &schema))
	var values map[string]any
	errtest.Must(t, yaml.Unmarshal(filetest.Read(t, "files/values.yaml"), &values))
	slices.Sort(schema.Required)
	if diff := cmp.Diff(slices.Sorted(maps.Keys(values)), schema.Required); diff != "" {
		t.Errorf("values.yaml and what the schema requires (-want +got):\n%s", diff)
	}
	delete(schema.Properties, "outside") // is not set by default
	if diff := cmp.Diff(slices.Sorted(maps.Keys(schema.Properties)), schema.Required); diff != "" {
		t.Errorf("properties and what the schema requires (-want +got):\n%s", diff)
	}
}

// elsewhere are the keys of veild's configuration that are not below the value config: other values
// and the manifests set them.
var elsewhere = []string{"node", "clusterRanges", "serviceRanges", "nodeRanges", "outside",
	"kubeadmConfig", "source.kind", "source.kubeconfig", "source.file", "keyFile", "snapshotFile",
	"trustDisk", "cni.confDir", "serviceProxy", "policy", "services.cgroup", "services.apiServers"}

// Each key of the configuration has a place in the values, and no part of them takes other keys.
func TestSchemaHasEachKey(t *testing.T) {
	var schema struct{ Properties map[string]property }
	text := filetest.Read(t, "files/values.schema.json")
	errtest.Must(t, yaml.Unmarshal(text, &schema))
	if all, closed := bytes.Count(text, []byte(`"type": "object"`)),
		bytes.Count(text, []byte(`"additionalProperties": false`)); all != closed {
		t.Errorf("%d of %d objects refuse other keys", closed, all)
	}
	got := append(schema.Properties["config"].keys(""), elsewhere...)
	want := keysOf(reflect.TypeFor[config.Config](), "")
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("keys of the configuration and of the values (-want +got):\n%s", diff)
	}
}

// property is a part of a JSON schema. Items describes the entries of a list.
type property struct {
	Properties map[string]property
	Items      *property
}

// keys returns the paths of the values that a property describes.
func (p property) keys(prefix string) (all []string) {
	for name, below := range p.Properties {
		if below.Items != nil {
			below = *below.Items
		}
		if below.Properties == nil {
			all = append(all, prefix+name)
		}
		all = append(all, below.keys(prefix+name+".")...)
	}
	return all
}

// keysOf returns the paths of the keys of a struct of package config.
func keysOf(of reflect.Type, prefix string) (all []string) {
	for i := range of.NumField() {
		f := of.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		below := f.Type
		if below == reflect.TypeFor[[]cluster.Site]() {
			below = below.Elem()
		}
		if below.Kind() == reflect.Struct {
			all = append(all, keysOf(below, prefix+name+".")...)
		} else {
			all = append(all, prefix+name)
		}
	}
	return all
}
