// Package deptest holds the rules of who may import what to what is really
// linked. Each rule comes with its reason, which is what a failed test says.
package deptest

import (
	"os/exec"
	"strings"
	"testing"
)

// Module is the path of this module.
const Module = "github.com/kubeveil/kubeveil"

// Forbid fails the test for each package that the one in the current directory
// depends on, directly or not, and that is below one of the prefixes in rules.
func Forbid(t *testing.T, rules map[string]string) {
	t.Helper()
	for _, dep := range list(t, "-deps", ".") {
		for prefix, reason := range rules {
			if below(dep, prefix) {
				t.Errorf("depends on %s: %s", dep, reason)
			}
		}
	}
}

// OnlyImporter fails the test for each package below the prefix tree, other than
// allowed, that imports something below dep itself; reason says why.
func OnlyImporter(t *testing.T, tree, dep, reason string, allowed ...string) {
	t.Helper()
	for _, line := range list(t, "-f", `{{.ImportPath}} {{join .Imports " "}}`, tree) {
		f := strings.Fields(line)
		for _, imported := range f[1:] {
			if !below(imported, dep) {
				continue
			}
			ok := false
			for _, a := range allowed {
				ok = ok || below(f[0], Module+"/"+a)
			}
			if !ok {
				t.Errorf("%s imports %s: %s", f[0], imported, reason)
			}
		}
	}
}

func below(pkg, prefix string) bool {
	prefix = strings.TrimSuffix(prefix, "/")
	return pkg == prefix || strings.HasPrefix(pkg, prefix+"/")
}

// list returns the lines of go list, of which there must be some.
func list(t *testing.T, args ...string) []string {
	t.Helper()
	out, err := exec.Command("go", append([]string{"list"}, args...)...).Output()
	if err != nil {
		t.Fatalf("go list %v: %v", args, err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if lines[0] == "" {
		t.Fatalf("go list %v gave nothing: the rule would hold for anything", args)
	}
	return lines
}
