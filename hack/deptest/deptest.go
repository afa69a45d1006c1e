// Package deptest holds the rules of who may import what, each with its reason, and checks packages
// by them.
//
// Rules and Layers are the only list of import rules: docs/architecture.md is generated from them,
// and a test here checks all packages of the module. Forbid holds what a program may not link at
// all; the deps_test.go of each program calls it.
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
