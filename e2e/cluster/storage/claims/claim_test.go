package claims

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"strings"
	"testing"
	"text/template"

	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
)

// The templates render YAML with the expected number of objects, each with a kind and a name.
func TestObjects(t *testing.T) {
	type class struct{ Name, FS string }
	for name, tt := range map[string]struct {
		template *template.Template
		data     map[string]any
		want     []string
	}{
		"setup": {setup, map[string]any{"Key": "aGVsbG8=",
			"Classes": []class{{"a", "ext4"}, {"b", ""}},
			"Secrets": []string{"provisioner", "node-stage"}},
			[]string{"Secret", "Role", "RoleBinding", "StorageClass", "StorageClass",
				"VolumeSnapshotClass"}},
		"a copy": {claimAndPod, map[string]any{"Name": "n", "Class": "c", "Block": false,
			"MiB": 9, "SourceKind": "VolumeSnapshot", "Source": "s", "Node": "n", "Image": "i"},
			[]string{"PersistentVolumeClaim", "Pod"}},
		"a device": {claimAndPod, map[string]any{"Name": "n", "Class": "c", "Block": true, "MiB": 9,
			"SourceKind": "", "Source": "", "Image": "i"},
			[]string{"PersistentVolumeClaim", "Pod"}},
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			errtest.Must(t, tt.template.Execute(&b, tt.data))

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

// The upstream's tests of volumes copy classes that the templates make.
func TestConformanceCopiesOurClasses(t *testing.T) {
	text := filetest.Read(t, "../../../conformance/testdriver.yaml")
	var made bytes.Buffer
	if err := setup.Execute(&made, map[string]any{"Key": "",
		"Classes": []struct{ Name, FS string }{{Ext4.Class, "ext4"}},
		"Secrets": []string{}}); err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(
		`(StorageClass|SnapshotClass):\n(?: *#.*\n)* *FromExistingClassName: (\S+)`).
		FindAllStringSubmatch(string(text), -1)
	if len(named) != 2 {
		t.Errorf("classes %q", named)
	}
	for _, m := range named {
		kind := strings.Replace(m[1], "Snapshot", "VolumeSnapshot", 1)
		if !strings.Contains(made.String(), "kind: "+kind+"\nmetadata: {name: "+m[2]+"}") {
			t.Errorf("there is no %s %s", kind, m[2])
		}
	}
}
