package deptest

import (
	"slices"
	"strings"
	"testing"
)

// The product knows nothing of its tests: no program that is shipped links a package of e2e, and no
// package of the product imports one.
func TestProductDoesNotImportItsTests(t *testing.T) {
	product := []string{Module + "/cmd/...", Module + "/pkg/...", Module + "/csi/...",
		Module + "/plugins/...", Module + "/bpf/..."}
	deps := list(t, append([]string{"-deps"}, product...)...)

	for _, dep := range deps {
		if below(dep, Module+"/e2e") {
			t.Errorf("the product depends on %s", dep)
		}
	}

	// The control: the list has the programs, and what they link.
	for _, want := range []string{"cmd/veilctl", "cmd/veil-tools", "pkg/remote", "csi/driver",
		"plugins/veil"} {
		if !slices.Contains(deps, Module+"/"+want) {
			t.Errorf("%s is not in the list of %d packages: %.200s …", want, len(deps),
				strings.Join(deps, " "))
		}
	}
}
