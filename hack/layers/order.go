package main

import (
	"cmp"
	"go/types"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

// use is a pair of files of one package: from names something that to declares.
type use struct{ from, to string }

// uses holds for each use the names that from uses, sorted and separated by commas.
type uses map[use]string

// usesOf returns the uses in a package. Uses of methods and fields count too.
func usesOf(p *packages.Package) uses {
	file := func(o types.Object) string {
		return filepath.Base(p.Fset.Position(o.Pos()).Filename)
	}
	names := map[use]map[string]bool{}
	for id, o := range p.TypesInfo.Uses {
		if o.Pkg() != p.Types || !o.Pos().IsValid() {
			continue
		}
		u := use{filepath.Base(p.Fset.Position(id.Pos()).Filename), file(o)}
		if u.from == u.to {
			continue
		}
		if names[u] == nil {
			names[u] = map[string]bool{}
		}
		names[u][o.Name()] = true
	}

	all := uses{}
	for u, of := range names {
		all[u] = strings.Join(slices.Sorted(maps.Keys(of)), ", ")
	}
	return all
}

// back returns the uses that lead to an earlier file in the order of u.order, sorted.
func (u uses) back() []use {
	place := map[string]int{}
	for i, f := range u.order() {
		place[f] = i
	}
	var back []use
	for _, e := range u.sorted() {
		if place[e.from] > place[e.to] {
			back = append(back, e)
		}
	}
	return back
}

// sorted returns all uses in a fixed order, so that every run has the same result.
func (u uses) sorted() []use {
	return slices.SortedFunc(maps.Keys(u), func(a, b use) int {
		return strings.Compare(a.from+"\x00"+a.to, b.from+"\x00"+b.to)
	})
}

// order returns the files, users before the files that they use. To find the order with the fewest
// uses back up is NP-hard (minimum feedback arc set). order starts with the files sorted by the
// difference between uses of others and uses by others. It then moves single files as long as that
// saves a use.
func (u uses) order() []string {
	edges, rank := u.sorted(), map[string]int{}
	for _, e := range edges {
		rank[e.from]--
		rank[e.to]++
	}
	order := slices.SortedFunc(maps.Keys(rank), func(a, b string) int {
		return cmp.Or(cmp.Compare(rank[a], rank[b]), cmp.Compare(a, b))
	})

	for better := true; better; {
		better = false
		for i, f := range order {
			if j, ok := bestPlace(order, i, edges); ok {
				order = slices.Insert(slices.Delete(order, i, i+1), j, f)
				better = true
				break
			}
		}
	}
	return order
}

// bestPlace returns the place to which the file at i must move to save most uses back up. saves is
// false if no move saves a use.
func bestPlace(order []string, i int, edges []use) (at int, saves bool) {
	// below holds for each file the number of uses that are saved if order[i] moves below that
	// file.
	below := map[string]int{}
	for _, e := range edges {
		switch order[i] {
		case e.from:
			below[e.to]--
		case e.to:
			below[e.from]++
		}
	}

	best, sum := 0, 0
	for j := i + 1; j < len(order); j++ {
		if sum += below[order[j]]; sum > best {
			best, at = sum, j
		}
	}
	sum = 0
	for j := i - 1; j >= 0; j-- {
		if sum -= below[order[j]]; sum > best {
			best, at = sum, j
		}
	}
	return at, best > 0
}
