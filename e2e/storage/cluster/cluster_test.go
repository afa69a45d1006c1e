package cluster

import (
	"bytes"
	"errors"
	"io"
	"os"
	"regexp"
	"testing"
	"text/template"

	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/kubeveil/kubeveil/pkg/nettest"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

func TestCases(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range cases() {
		if !regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`).MatchString(c.name) || seen[c.name] || c.limit == 0 || c.run == nil {
			t.Errorf("case %q: limit %v", c.name, c.limit)
		}
		seen[c.name] = true
	}
}

// What the templates give is YAML of as many objects as there should be, each with a kind and a name.
func TestObjects(t *testing.T) {
	type class struct{ Name, FS string }
	for name, tt := range map[string]struct {
		template *template.Template
		data     map[string]any
		want     []string
	}{
		"setup": {setup, map[string]any{"Key": "aGVsbG8=", "Classes": []class{{"a", "ext4"}, {"b", ""}}, "Secrets": []string{"provisioner", "node-stage"}},
			[]string{"Secret", "Role", "RoleBinding", "StorageClass", "StorageClass", "VolumeSnapshotClass"}},
		"a copy":   {claimAndPod, map[string]any{"Name": "n", "Class": "c", "Block": false, "MiB": 9, "SourceKind": "VolumeSnapshot", "Source": "s", "Image": "i"}, []string{"PersistentVolumeClaim", "Pod"}},
		"a device": {claimAndPod, map[string]any{"Name": "n", "Class": "c", "Block": true, "MiB": 9, "SourceKind": "", "Source": "", "Image": "i"}, []string{"PersistentVolumeClaim", "Pod"}},
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			if err := tt.template.Execute(&b, tt.data); err != nil {
				t.Fatal(err)
			}
			d := yaml.NewYAMLOrJSONDecoder(&b, 4096)
			for _, want := range append(tt.want, "") {
				var object struct {
					Kind     string
					Metadata struct{ Name string }
				}
				err := d.Decode(&object)
				if want == "" && errors.Is(err, io.EOF) {
					return
				}
				if err != nil || object.Kind != want || object.Metadata.Name == "" {
					t.Fatalf("%+v, %v; want a %s", object, err, want)
				}
			}
		})
	}
}
