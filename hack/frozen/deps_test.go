package frozen

import (
	"maps"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/hack/deptest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/golden"
)

// programs are the folders of the programs that are shipped.
var programs = []string{"cmd/veil-csi", "cmd/veil-site", "cmd/veil-tools", "cmd/veil-wg",
	"cmd/veilctl", "cmd/veild", "plugins/veil"}

// TestLinkedPackages compares the packages of this module and the other modules that programs link
// with a golden file.
func TestLinkedPackages(t *testing.T) {
	golden.Check(t, "deps.txt", linked(t))
}

// linked returns a line for each package of this module and each other module that a program links,
// with the names of these programs. It leaves out the versions of modules, which are in go.mod.
func linked(t *testing.T) string {
	t.Helper()
	const format = "{{.ImportPath}}\t{{with .Module}}{{if .Main}}.{{else}}{{.Path}}{{end}}{{end}}" +
		"\t{{if eq .Name \"main\"}}{{join .Deps \" \"}}{{end}}"
	args := []string{"list", "-deps", "-f", format}
	for _, dir := range programs {
		args = append(args, deptest.Module+"/"+dir)
	}
	out, err := exec.Command("go", args...).Output()
	errtest.Must(t, err)

	names := map[string]string{}     // by import path, of all but the standard library
	imports := map[string][]string{} // of each program, direct or not
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		switch f[1] {
		case "":
		case ".":
			names[f[0]] = strings.TrimPrefix(f[0], deptest.Module+"/")
		default:
			names[f[0]] = "module " + f[1]
		}
		if f[2] != "" {
			imports[path.Base(f[0])] = append(strings.Fields(f[2]), f[0])
		}
	}

	users := map[string][]string{} // programs, by name
	for _, program := range slices.Sorted(maps.Keys(imports)) {
		all := map[string]bool{}
		for _, i := range imports[program] {
			all[names[i]] = true
		}
		for name := range all {
			users[name] = append(users[name], program)
		}
	}
	delete(users, "") // the standard library

	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(users)) {
		text.WriteString(name + ": " + strings.Join(users[name], " ") + "\n")
	}
	return text.String()
}
