package frozen

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pmezard/go-difflib/difflib"
	"sigs.k8s.io/yaml"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/golden"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// TestManifests compares the objects that kustomize renders with golden files, for each
// kustomization that users apply as it is: the objects, their order, and their differences from the
// files in the tree. For a kustomization that extends another, the golden file has the difference
// between the two.
func TestManifests(t *testing.T) {
	kubectl := "../../out/bin/kubectl"
	if _, err := os.Stat(kubectl); err != nil {
		nettest.NeedProgram(t, "kubectl")
		kubectl = "kubectl"
	}
	files := inFiles(t, "../../manifests")

	bases := map[string][]object{}
	for name, dir := range map[string]string{
		"cni": ".", "uninstall": "uninstall", "csi": "csi", "csi-uninstall": "csi-uninstall",
	} {
		bases[name] = render(t, kubectl, "../../manifests/"+dir)
		golden.Check(t, "manifests/"+name+".txt", difference(t, files, nil, bases[name]))
	}
	golden.Check(t, "manifests/csi-snapshots.txt", difference(t, files, bases["csi"],
		render(t, kubectl, "../../manifests/csi-snapshots")))

	components, err := os.ReadDir("../../manifests/components")
	errtest.Must(t, err)
	for _, c := range components {
		dir, base := "manifests", bases["cni"]
		switch c.Name() {
		case "snapshots": // of csi-snapshots above
			continue
		case "csi-servicemonitor", "kubelet-dir":
			dir, base = "manifests/csi", bases["csi"]
		}
		t.Run(c.Name(), func(t *testing.T) {
			got := render(t, kubectl, withComponent(t, dir, c.Name()))
			golden.Check(t, "manifests/"+c.Name()+".txt", difference(t, files, base, got))
		})
	}
}

// withComponent returns a folder with a kustomization of the folder base with a component.
func withComponent(t *testing.T, base, name string) string {
	t.Helper()
	dir, err := os.MkdirTemp("testdata", name)
	errtest.Must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })

	own := `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [../../../../` + base + `]
components: [../../../../manifests/components/` + name + `]
`
	filetest.Write(t, dir+"/kustomization.yaml", []byte(own), 0o600)
	return dir
}

// copied is a file that kustomize copies into an object. Golden files have its name alone.
const copied = "components/servicemonitor/dashboard.json"

// render returns the objects of a kustomization, in the order in which they are applied.
func render(t *testing.T, kubectl, dir string) []object {
	t.Helper()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), kubectl, "kustomize", dir)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v: %s", cmd, err, stderr.String())
	}
	content := strings.TrimSpace(string(filetest.Read(t, "../../manifests/"+copied)))
	block := "|\n    " + strings.ReplaceAll(content, "\n", "\n    ")
	return objects(t, strings.Replace(string(out), block, "content of "+copied, 1))
}

// inFiles returns the texts of the objects in the files below dir.
func inFiles(t *testing.T, dir string) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".yaml" {
			return err
		}
		text, err := os.ReadFile(path)
		// A patch may be a list.
		if err == nil && bytes.Contains(text, []byte("\nkind: ")) {
			for _, o := range objects(t, string(text)) {
				all[o.text] = true
			}
		}
		return err
	})
	errtest.Must(t, err)
	return all
}

// object is one object of the API.
type object struct {
	name string // kind, namespace and name
	text string // sorted by keys, without comments
}

// objects splits and parses YAML.
func objects(t *testing.T, text string) (all []object) {
	t.Helper()
	for part := range strings.SplitSeq(text, "---\n") {
		var head struct {
			Kind     string
			Metadata struct{ Namespace, Name string }
		}
		var whole any
		if err := errors.Join(yaml.Unmarshal([]byte(part), &head),
			yaml.Unmarshal([]byte(part), &whole)); err != nil {
			t.Fatalf("%v\n%s", err, part)
		}
		sorted, err := yaml.Marshal(whole)
		errtest.Must(t, err)
		all = append(all, object{
			name: strings.Join(strings.Fields(head.Kind+" "+head.Metadata.Namespace+" "+
				head.Metadata.Name), " "),
			text: string(sorted),
		})
	}
	return all
}

// difference returns a text with the objects that are only in got, the objects that are only in
// base, and the differences between the others. It contains the whole text of an object that is
// only in got, unless that text is in files.
func difference(t *testing.T, files map[string]bool, base, got []object) string {
	t.Helper()
	before := map[string]string{}
	for _, o := range base {
		before[o.name] = o.text
	}

	var b strings.Builder
	for _, o := range got {
		old, known := before[o.name]
		delete(before, o.name)
		switch {
		case o.text == old:
		case !known && files[o.text]:
			fmt.Fprintf(&b, "added %s\n", o.name)
		case !known:
			fmt.Fprintf(&b, "added %s, which is in no file\n%s", o.name, o.text)
		default:
			diff, err := difflib.GetUnifiedDiffString(difflib.UnifiedDiff{
				A: slices.Collect(strings.Lines(old)), B: slices.Collect(strings.Lines(o.text)),
				Context: 2})
			errtest.Must(t, err)
			fmt.Fprintf(&b, "changed %s\n%s", o.name, diff)
		}
	}
	for _, o := range base {
		if _, left := before[o.name]; left {
			fmt.Fprintf(&b, "removed %s\n", o.name)
		}
	}
	return b.String()
}

// What difference returns shows each kind of change.
func TestDifferenceShowsEachChange(t *testing.T) {
	const same, gone = "kind: A\nmetadata:\n  name: same\n", "kind: A\nmetadata:\n  name: gone\n"
	const old = "kind: B\nmetadata:\n  name: b\nx: 1\n"
	const changed = "kind: B\nmetadata:\n  name: b\nx: 2\n"
	const added = "kind: C\nmetadata:\n  name: c\n  namespace: ns\n"
	const written = "kind: D\nmetadata:\n  name: d\n"
	got := difference(t, map[string]bool{written: true},
		objects(t, strings.Join([]string{same, gone, old}, "---\n")),
		objects(t, strings.Join([]string{same, changed, added, "# d\n" + written}, "---\n")))
	want := "changed B b\n@@ -2,3 +2,3 @@\n metadata:\n   name: b\n-x: 1\n+x: 2\n" +
		"added C ns c, which is in no file\n" + added + "added D d\nremoved A gone\n"
	if got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
