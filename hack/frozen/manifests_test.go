package frozen

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/golden"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// TestManifests holds what kustomize renders of each kustomization that is
// applied as it is. The definitions of snapshots are the upstream's, and long.
func TestManifests(t *testing.T) {
	kubectl := "../../out/bin/kubectl"
	if _, err := os.Stat(kubectl); err != nil {
		nettest.NeedProgram(t, "kubectl")
		kubectl = "kubectl"
	}

	for name, dir := range map[string]string{
		"cni": ".", "uninstall": "uninstall", "csi": "csi", "csi-uninstall": "csi-uninstall",
		"csi-snapshots": "csi-snapshots",
	} {
		t.Run(name, func(t *testing.T) {
			golden.Check(t, "manifests/"+name+".yaml", render(t, kubectl, "../../manifests/"+dir))
		})
	}

	components, err := os.ReadDir("../../manifests/components")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range components {
		switch name := c.Name(); name {
		case "snapshots": // of csi-snapshots above
		case "csi-servicemonitor", "kubelet-dir":
			t.Run(name, func(t *testing.T) { checkComponent(t, kubectl, "manifests/csi", name) })
		default:
			t.Run(name, func(t *testing.T) { checkComponent(t, kubectl, "manifests", name) })
		}
	}
}

// checkComponent holds what a kustomization of the folder base with a component gives.
func checkComponent(t *testing.T, kubectl, base, name string) {
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
	golden.Check(t, "manifests/"+name+".yaml", render(t, kubectl, dir))
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
