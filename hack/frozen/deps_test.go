package frozen

import (
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/hack/deptest"
	"github.com/kubeveil/kubeveil/internal/golden"
)

// programs are the programs that are shipped, by name.
var programs = map[string]string{
	"veil":       "plugins/veil",
	"veil-csi":   "cmd/veil-csi",
	"veil-tools": "cmd/veil-tools",
	"veil-wg":    "cmd/veil-wg",
	"veilctl":    "cmd/veilctl",
	"veild":      "cmd/veild",
}

// TestLinkedPackages compares the packages of this module and the other modules that each program
// links with golden files.
func TestLinkedPackages(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(programs)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			golden.Check(t, "deps/"+name+".txt", linked(t, programs[name]))
		})
	}
}

// linked returns the packages of this module, and the other modules, that the program in dir links,
// one per line. It does not list the versions of modules, which are in go.mod.
func linked(t *testing.T, dir string) string {
	t.Helper()
	const format = `{{if .Module}}{{if .Module.Main}}{{.ImportPath}}{{else}}module {{.Module.Path}}{{end}}{{end}}`
	cmd := exec.Command("go", "list", "-deps", "-f", format, deptest.Module+"/"+dir)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", cmd, err)
	}

	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimPrefix(line, deptest.Module+"/")
	}
	slices.Sort(lines)
	return strings.Join(slices.Compact(lines), "\n") + "\n"
}
