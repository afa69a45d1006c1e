package frozen

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/pmezard/go-difflib/difflib"
	"sigs.k8s.io/yaml"

	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/golden"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// TestManifests holds what kustomize renders of each kustomization that is applied as it is. One
// that extends another is held as its difference.
func TestManifests(t *testing.T) {
	kubectl := "../../out/bin/kubectl"
	if _, err := os.Stat(kubectl); err != nil {
		nettest.NeedProgram(t, "kubectl")
		kubectl = "kubectl"
	}

	bases := map[string]string{}
	for name, dir := range map[string]string{
		"cni": ".", "uninstall": "uninstall", "csi": "csi", "csi-uninstall": "csi-uninstall",
	} {
		bases[name] = render(t, kubectl, "../../manifests/"+dir)
		golden.Check(t, "manifests/"+name+".yaml", bases[name])
	}
	golden.Check(t, "manifests/csi-snapshots.txt", difference(t, bases["csi"],
		render(t, kubectl, "../../manifests/csi-snapshots")))

	components, err := os.ReadDir("../../manifests/components")
	if err != nil {
		t.Fatal(err)
	}
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
			golden.Check(t, "manifests/"+c.Name()+".txt", difference(t, base, got))
		})
	}
}

// withComponent returns a folder with a kustomization of the folder base with a component.
func withComponent(t *testing.T, base, name string) string {
	t.Helper()
	dir, err := os.MkdirTemp("testdata", name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })

	own := `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [../../../../` + base + `]
components: [../../../../manifests/components/` + name + `]
`
	filetest.Write(t, dir+"/kustomization.yaml", []byte(own), 0o600)
	return dir
}

// render returns the objects of a kustomization, without comments.
func render(t *testing.T, kubectl, dir string) string {
	t.Helper()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), kubectl, "kustomize", dir)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v: %s", cmd, err, stderr.String())
	}

	var lines []string
	for line := range strings.Lines(string(out)) {
		if !strings.HasPrefix(strings.TrimSpace(line), "#") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

// object is one object of a rendered kustomization.
type object struct {
	name string // kind, namespace and name
	text string
	// foreign reports a definition of another project, which the tree has as a file.
	foreign bool
}

// objects splits what render returned.
func objects(t *testing.T, rendered string) (all []object) {
	t.Helper()
	for text := range strings.SplitSeq(rendered, "---\n") {
		var head struct {
			Kind     string
			Metadata struct{ Namespace, Name string }
		}
		if err := yaml.Unmarshal([]byte(text), &head); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		all = append(all, object{
			name: strings.Join(strings.Fields(head.Kind+" "+head.Metadata.Namespace+" "+
				head.Metadata.Name), " "),
			text: text,
			foreign: head.Kind == "CustomResourceDefinition" &&
				!strings.HasSuffix(head.Metadata.Name, "kubeveil.io"),
		})
	}
	return all
}

// difference returns which objects of a kustomization its base lacks, with their text, which ones
// only the base has, and how the others differ. Definitions of other projects are a checksum.
func difference(t *testing.T, base, got string) string {
	t.Helper()
	before := map[string]string{}
	for _, o := range objects(t, base) {
		before[o.name] = o.text
	}

	var b strings.Builder
	for _, o := range objects(t, got) {
		old, known := before[o.name]
		delete(before, o.name)
		switch {
		case o.text == old:
		case o.foreign:
			fmt.Fprintf(&b, "added %s, sha256 %x\n", o.name, sha256.Sum256([]byte(o.text)))
		case !known:
			fmt.Fprintf(&b, "added %s\n%s", o.name, o.text)
		default:
			diff, err := difflib.GetUnifiedDiffString(difflib.UnifiedDiff{
				A: slices.Collect(strings.Lines(old)), B: slices.Collect(strings.Lines(o.text)),
				Context: 2})
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&b, "changed %s\n%s", o.name, diff)
		}
	}
	for _, o := range objects(t, base) {
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
	got := difference(t, strings.Join([]string{same, gone, old}, "---\n"),
		strings.Join([]string{same, changed, added}, "---\n"))
	want := "changed B b\n@@ -2,3 +2,3 @@\n metadata:\n   name: b\n-x: 1\n+x: 2\n" +
		"added C ns c\n" + added + "removed A gone\n"
	if got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
