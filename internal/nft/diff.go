package nft

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Difference holds the changes that a table in the kernel needs.
type Difference struct {
	want *Table
	// replace reports whether the table is deleted first; chains reports whether the chains are
	// replaced.
	replace, chains bool
	counters        []string
	sets            []Set
	elements        []Elements
	// what names the objects that differ, for String.
	what []string
}

// Elements is a change of the elements of a set.
type Elements struct {
	Table, Set string
	// Remove is applied before Add. Every element in Remove must exist. Elements in Add may exist.
	Add, Remove []Element
}

// Diff returns the changes that turn have into want, or nil if they are equal. A nil have means
// that there is no table. Diff is pure.
func Diff(have, want *Table) *Difference {
	d := &Difference{want: want, replace: have == nil}
	if have == nil {
		have = new(Table)
	} else {
		d.compare(have.objects(), want.objects())
	}
	d.chains = d.chains || d.replace

	for _, name := range want.Counters {
		if d.replace || !slices.Contains(have.Counters, name) {
			d.counters = append(d.counters, name)
		}
	}

	for _, s := range want.Sets {
		e := Elements{Table: want.Name, Set: s.Name, Add: s.Elements}
		if old := have.Set(s.Name); d.replace || old.Name == "" {
			d.sets = append(d.sets, s)
		} else if e.Add, e.Remove = minus(s.Elements, old.Elements),
			minus(old.Elements, s.Elements); !s.Shared && len(e.Add)+len(e.Remove) > 0 {
			d.what = append(d.what, fmt.Sprintf("set %s +%d -%d", s.Name, len(e.Add), len(e.Remove)))
		}
		if !s.Shared {
			d.elements = append(d.elements, e)
		}
	}
	if !d.replace && len(d.what) == 0 {
		return nil
	}
	return d
}

// compare sets chains, replace and what from the objects of the two tables.
func (d *Difference) compare(have, want map[string]any) {
	shared := slices.ContainsFunc(d.want.Sets, func(s Set) bool { return s.Shared })
	all := maps.Clone(have)
	maps.Copy(all, want)
	for _, object := range slices.Sorted(maps.Keys(all)) {
		found, has := have[object]
		wanted, wants := want[object]
		if has && wants && reflect.DeepEqual(found, wanted) {
			continue
		}
		kind, _, _ := strings.Cut(object, " ")
		d.what = append(d.what, object)
		d.chains = d.chains || kind == "chain"
		d.replace = d.replace || !shared || !wants || has && kind != "chain"
	}
}

// String returns a description of the change, with the objects that differ. If the table is
// missing, it names no objects.
func (d *Difference) String() string {
	text := "write nftables table " + d.want.Name
	if len(d.what) > 0 {
		text += ": " + strings.Join(d.what, ", ")
	}
	return text
}

// Table returns the name of the table that differs.
func (d *Difference) Table() string { return d.want.Name }

// minus returns the elements in a that are not in b.
func minus(a, b []Element) []Element {
	in := make(map[Element]bool, len(b))
	for _, e := range b {
		in[e] = true
	}
	return slices.DeleteFunc(slices.Clone(a), func(e Element) bool { return in[e] })
}
