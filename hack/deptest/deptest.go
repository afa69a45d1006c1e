// Package deptest holds the rules of who may import what, each with its reason, and checks packages
// by them.
//
// Rules and Layers are the only list of import rules. docs/architecture.md is generated from them,
// and a test in this package checks all packages of the module. Forbid is for packages that a
// program must not link at all. The deps_test.go of each program calls it.
//
// Start reading at rule.go.
package deptest

import (
	"os/exec"
	"strings"
	"testing"
)

// Module is the path of this module.
const Module = "github.com/kubeveil/kubeveil"

// Forbid fails the test for each direct or indirect dependency of the package in the current
// directory that is at or below a key of rules. The value is the reason.
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

func below(pkg, prefix string) bool {
	prefix = strings.TrimSuffix(prefix, "/")
	return pkg == prefix || strings.HasPrefix(pkg, prefix+"/")
}

// list returns the output lines of go list. It fails the test if there are none.
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
