package deptest

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"
)

// Package is a package and its imports. Packages of this module are named by their paths in the
// module, such as pkg/abi.
type Package struct {
	Path string
	// Imports are the imports of the package, TestImports those of its test files.
	Imports, TestImports []string
}

// Check returns a message for each import in pkgs that violates Rules or Layers, and for each entry
// of Rules or Layers that is not needed for pkgs and must be removed. The messages are sorted.
func Check(pkgs []Package) (problems []string) {
	c := checker{known: map[string]bool{}, used: map[string]bool{}}
	for _, p := range pkgs {
		c.known[p.Path] = true
	}
	for _, p := range pkgs {
		c.floor(p.Path)
		for _, dep := range p.Imports {
			c.judge(p.Path, dep, isHelper(p.Path))
		}
		for _, dep := range p.TestImports {
			c.judge(p.Path, dep, true)
		}
	}
	c.stale()

	slices.Sort(c.problems)
	return slices.Compact(c.problems)
}

type checker struct {
	known    map[string]bool // packages
	used     map[string]bool // keys of entry for entries of Rules that allowed an import
	problems []string
}

func (c *checker) add(format string, args ...any) {
	c.problems = append(c.problems, fmt.Sprintf(format, args...))
}

// judge checks the import of dep by from. test reports whether the import is in a test.
func (c *checker) judge(from, dep string, test bool) {
	if !in(from, Product) {
		return
	}
	for i, r := range Rules {
		scope := r.In
		if scope == nil {
			scope = Product
		}
		if !in(from, scope) || !in(dep, r.Deps) || c.allows(i, from, dep, test) {
			continue
		}
		c.add("%s imports %s: %s", from, dep, r.Reason)
	}

	if test {
		return
	}
	if c.known[dep] && isHelper(dep) {
		c.add("%s imports %s: only tests import helpers of tests", from, dep)
	}
	c.climb(from, dep)
}

// allows reports whether rule i has an exception for the import.
func (c *checker) allows(i int, from, dep string, test bool) bool {
	if slices.ContainsFunc(Rules[i].Deps, func(d string) bool { return in(from, []string{d}) }) {
		return true // a forbidden package may import itself in tests, and packages below itself
	}
	for _, a := range Rules[i].Allow {
		if in(from, []string{a}) {
			c.used[entry(i, a)] = true
			return true
		}
	}
	for _, a := range Rules[i].Tests {
		if test && in(from, []string{a}) {
			c.used[entry(i, a)] = true
			return true
		}
	}
	return false
}

func entry(rule int, folder string) string { return fmt.Sprint(rule, " ", folder) }

// climb checks that an import within a room leads to a lower floor.
func (c *checker) climb(from, dep string) {
	room, high, unit := floorOf(from)
	other, low, dest := floorOf(dep)
	if unit == "" || dest == "" || room != other || unit == dest || low > high {
		return
	}
	c.add("%s imports %s, which is not on a lower floor of %s (Layers in hack/deptest/rule.go): "+
		"move what is needed down", from, dep, room)
}

// floor checks that a package in a room with floors is on a floor.
func (c *checker) floor(pkg string) {
	room, _, unit := floorOf(pkg)
	if room != "" && unit == "" && pkg != room && !isHelper(pkg) {
		c.add("%s is on no floor of %s: add it to Layers in hack/deptest/rule.go", pkg, room)
	}
}

// floorOf returns the room of a package, the number of its floor, where 0 is the highest, and the
// path in Layers to which it belongs. unit is "" if the package is on no floor, and room is "" if
// its top-level folder has no floors.
func floorOf(pkg string) (room string, floor int, unit string) {
	room, _, _ = strings.Cut(pkg, "/")
	layers, ok := Layers[room]
	if !ok {
		return "", 0, ""
	}
	for i, l := range layers {
		for _, u := range l.Packages {
			if in(pkg, []string{u}) && len(u) > len(unit) {
				floor, unit = i, u
			}
		}
	}
	return room, floor, unit
}

// stale adds a message for each entry of Rules that allowed no import, and for each path in Layers
// without a package.
func (c *checker) stale() {
	for i, r := range Rules {
		for _, a := range slices.Concat(r.Allow, r.Tests) {
			if !c.used[entry(i, a)] {
				c.add("nothing in %s imports %s: remove it from that rule in hack/deptest/rule.go",
					a, strings.Join(r.Deps, " or "))
			}
		}
	}
	for room, layers := range Layers {
		for _, l := range layers {
			for _, u := range l.Packages {
				if !c.exists(u) {
					c.add("there is no package %s: remove it from the floors of %s in "+
						"hack/deptest/rule.go", u, room)
				}
			}
		}
	}
}

// exists reports whether there is a package at or below a path.
func (c *checker) exists(path string) bool {
	for p := range c.known {
		if below(p, path) {
			return true
		}
	}
	return false
}

// in reports whether a package is at or below one of the paths.
func in(pkg string, paths []string) bool {
	return slices.ContainsFunc(paths, func(p string) bool { return below(pkg, p) })
}

// isHelper reports whether a package of this module holds helpers of tests.
func isHelper(pkg string) bool {
	return strings.HasSuffix(path.Base(pkg), "test") || pkg == "internal/golden"
}

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
