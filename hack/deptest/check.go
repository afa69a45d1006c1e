package deptest

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// Package is a package and what it imports. Packages of this module are named by their paths in it.
type Package struct {
	Path string
	// Imports and TestImports are what the package and its test files import.
	Imports, TestImports []string
}

// Check returns what breaks Rules and Layers, sorted, one message each. It also returns which
// entries of them fit no package of pkgs, so that they can be removed.
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
	used     map[string]bool // entries that allowed an import, see entry
	problems []string
}

func (c *checker) add(format string, args ...any) {
	c.problems = append(c.problems, fmt.Sprintf(format, args...))
}

// judge checks an import of a package, or of its tests.
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

// allows reports whether rule i allows the import all the same.
func (c *checker) allows(i int, from, dep string, test bool) bool {
	if slices.ContainsFunc(Rules[i].Deps, func(d string) bool { return in(from, []string{d}) }) {
		return true // a package may import itself in its tests, and what is below it
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

// climb checks that an import leads to a lower floor.
func (c *checker) climb(from, dep string) {
	room, high, unit := floorOf(from)
	other, low, dest := floorOf(dep)
	if unit == "" || dest == "" || room != other || unit == dest || low > high {
		return
	}
	c.add("%s imports %s, which is not on a lower floor of %s (Layers in hack/deptest/rule.go): "+
		"move what is needed down", from, dep, room)
}

// floor checks that a package of a room with floors is on one.
func (c *checker) floor(pkg string) {
	room, _, unit := floorOf(pkg)
	if room != "" && unit == "" && pkg != room && !isHelper(pkg) {
		c.add("%s is on no floor of %s: add it to Layers in hack/deptest/rule.go", pkg, room)
	}
}

// floorOf returns the room of a package, the number of its floor, 0 the highest, and the path there
// that it belongs to; the path is empty if there is none.
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

// stale reports entries that fit nothing.
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
