package deptest

import (
	"slices"
	"strings"
	"testing"
)

// The packages of this module import only what Rules and Layers allow, and no entry there is out of
// date.
func TestImportsFollowTheRules(t *testing.T) {
	const format = `{{.ImportPath}}|{{join .Imports " "}}|{{join .TestImports " "}} ` +
		`{{join .XTestImports " "}}`
	var pkgs []Package
	for _, line := range list(t, "-f", format, Module+"/...") {
		f := strings.Split(line, "|")
		pkgs = append(pkgs, Package{inModule(f[0])[0], inModule(f[1]), inModule(f[2])})
	}

	for _, problem := range Check(pkgs) {
		t.Error(problem)
	}
	if len(pkgs) < 100 {
		t.Errorf("only %d packages were checked", len(pkgs))
	}
}

// inModule returns the import paths in text. Paths of this module are relative to it.
func inModule(text string) (paths []string) {
	for path := range strings.FieldsSeq(text) {
		paths = append(paths, strings.TrimPrefix(path, Module+"/"))
	}
	return paths
}

func TestForbiddenImportsAreFound(t *testing.T) {
	for name, c := range map[string]struct {
		pkg  Package
		want string // the beginning of the message; empty means that there is none
	}{
		"test code in the product": {Package{Path: "cmd/veilctl", Imports: []string{"e2e/lab"}},
			"cmd/veilctl imports e2e/lab: "},
		"test code in a test of the product": {
			Package{Path: "pkg/pod", TestImports: []string{"e2e/lab"}},
			"pkg/pod imports e2e/lab: "},
		"test code in test code": {Package{Path: "e2e/vm", Imports: []string{"e2e/lab"}}, ""},
		"the network in volumes": {Package{Path: "csi/mount", Imports: []string{"pkg/abi"}},
			"csi/mount imports pkg/abi: "},
		"the network in tests of volumes": {
			Package{Path: "csi/mount", TestImports: []string{"pkg/abi"}},
			"csi/mount imports pkg/abi: "},
		"volumes in the network": {Package{Path: "pkg/pod", Imports: []string{"csi/crypt"}},
			"pkg/pod imports csi/crypt: "},
		"the product in a leaf": {Package{Path: "internal/nft", Imports: []string{"pkg/abi"}},
			"internal/nft imports pkg/abi: "},
		"the product in a test of a leaf": {
			Package{Path: "internal/nft", TestImports: []string{"pkg/abi"}},
			"internal/nft imports pkg/abi: "},
		"the product in a helper of all tests": {
			Package{Path: "internal/nettest", Imports: []string{"pkg/abi"}},
			"internal/nettest imports pkg/abi: "},
		"the product in a helper beside it": {
			Package{Path: "pkg/pod/podtest", Imports: []string{"pkg/abi"}}, ""},
		"programs": {Package{Path: "pkg/hostnet", Imports: []string{"bpf"}},
			"pkg/hostnet imports bpf: "},
		"programs in the guard":   {Package{Path: "pkg/guard", Imports: []string{"bpf"}}, ""},
		"programs in their tests": {Package{Path: "bpf", TestImports: []string{"bpf"}}, ""},
		"programs in other tests": {Package{Path: "pkg/pod", TestImports: []string{"bpf"}},
			"pkg/pod imports bpf: "},
		"client-go in a planner": {
			Package{Path: "pkg/policy", Imports: []string{"k8s.io/client-go/rest"}},
			"pkg/policy imports k8s.io/client-go/rest: "},
		"a path that begins like client-go": {
			Package{Path: "pkg/policy", Imports: []string{"k8s.io/client-go2"}}, ""},
		"a command in a volume": {Package{Path: "csi/crypt", Imports: []string{"os/exec"}},
			"csi/crypt imports os/exec: "},
		"a command in a test of a volume": {
			Package{Path: "csi/crypt", TestImports: []string{"os/exec"}}, ""},
		"the kernel in what decides": {
			Package{Path: "pkg/cluster", Imports: []string{"internal/nl"}},
			"pkg/cluster imports internal/nl: "},
		"a helper of tests": {Package{Path: "pkg/pod", Imports: []string{"pkg/pod/podtest"}},
			"pkg/pod imports pkg/pod/podtest: only tests"},
		"a helper of tests in a test": {
			Package{Path: "pkg/pod", TestImports: []string{"pkg/pod/podtest"}}, ""},
		"a higher floor": {Package{Path: "pkg/cluster", Imports: []string{"pkg/abi"}},
			"pkg/cluster imports pkg/abi, which is not on a lower floor of pkg"},
		"the same floor": {Package{Path: "pkg/guard", Imports: []string{"pkg/pod"}},
			"pkg/guard imports pkg/pod, which is not on a lower floor of pkg"},
		"the same floor, one path": {
			Package{Path: "pkg/engine", Imports: []string{"pkg/engine/noise"}}, ""},
		"a floor of its own below another": {
			Package{Path: "pkg/policy/nftables", Imports: []string{"pkg/policy/keeper"}},
			"pkg/policy/nftables imports pkg/policy/keeper, which is not on a lower floor"},
		"no floor": {Package{Path: "pkg/weather"}, "pkg/weather is on no floor of pkg: "},
	} {
		t.Run(name, func(t *testing.T) {
			about := func(s string) bool { return strings.HasPrefix(s, c.pkg.Path+" ") }
			known := []Package{c.pkg, {Path: "pkg/pod/podtest"}}
			got := slices.DeleteFunc(Check(known), func(s string) bool { return !about(s) })

			if c.want == "" && len(got) > 0 || c.want != "" &&
				(len(got) != 1 || !strings.HasPrefix(got[0], c.want)) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestEntriesThatFitNothingAreFound(t *testing.T) {
	problems := Check([]Package{{Path: "pkg/guard", Imports: []string{"bpf"}}})
	for _, want := range []string{
		"nothing in pkg/service/bpfmaps imports bpf: ",
		"there is no package pkg/tunnel: remove it from the floors of pkg",
	} {
		begins := func(s string) bool { return strings.HasPrefix(s, want) }
		if !slices.ContainsFunc(problems, begins) {
			t.Errorf("no problem begins with %q", want)
		}
	}
	for _, p := range problems {
		if strings.HasPrefix(p, "nothing in pkg/guard imports bpf") {
			t.Errorf("an entry that is used: %s", p)
		}
	}
}
