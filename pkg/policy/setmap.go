package policy

import (
	"iter"
	"maps"
	"reflect"
)

// SetMap holds the sets of a Plan by name. It is never changed. Consecutive plans share most of it,
// so a plan takes time in proportion to the sets that changed, were added or were removed. The zero
// value is empty.
type SetMap struct {
	// base is shared by consecutive plans; nil means that it is empty. Sets in changed replace
	// those in base; nil in changed means that the set was removed.
	base    *map[string]*Set
	changed map[string]*Set
	count   int
}

// NewSetMap returns a map of sets by name, which it keeps.
func NewSetMap(sets map[string]*Set) SetMap { return SetMap{base: &sets, count: len(sets)} }

// maxChanged is the number of sets that may differ from a shared map before a new map is made.
const maxChanged = 256

// Get returns the set of a name, or nil if there is none.
func (m SetMap) Get(name string) *Set {
	if s, has := m.changed[name]; has {
		return s
	}
	if m.base == nil {
		return nil
	}
	return (*m.base)[name]
}

// Len returns the number of sets.
func (m SetMap) Len() int { return m.count }

// All returns all sets by name, in no order.
func (m SetMap) All() iter.Seq2[string, *Set] {
	return func(yield func(string, *Set) bool) {
		for name, s := range m.changed {
			if s != nil && !yield(name, s) {
				return
			}
		}
		if m.base == nil {
			return
		}
		for name, s := range *m.base {
			if _, has := m.changed[name]; !has && !yield(name, s) {
				return
			}
		}
	}
}

// ChangedSince returns the names of the sets that differ from another plan, which may have none of
// the name. ok is false if any set may differ.
func (m SetMap) ChangedSince(before SetMap) (names []string, ok bool) {
	if m.base == nil || m.base != before.base {
		return nil, false
	}
	for name, s := range m.changed {
		if before.Get(name) != s {
			names = append(names, name)
		}
	}
	for name, s := range before.changed {
		if _, has := m.changed[name]; !has && m.Get(name) != s {
			names = append(names, name)
		}
	}
	return names, true
}

// With returns the map with some sets replaced or added, by name, or removed if they are nil.
func (m SetMap) With(sets map[string]*Set) SetMap {
	if len(sets) == 0 {
		return m
	}

	out := SetMap{base: m.base, count: m.count}
	for name, s := range sets {
		out.count += b2i(s != nil) - b2i(m.Get(name) != nil)
	}
	if m.base == nil || len(m.changed)+len(sets) > maxChanged {
		base := make(map[string]*Set, out.count)
		maps.Insert(base, m.All())
		for name, s := range sets {
			if s == nil {
				delete(base, name)
			} else {
				base[name] = s
			}
		}
		out.base = &base
		return out
	}

	out.changed = make(map[string]*Set, len(m.changed)+len(sets))
	maps.Copy(out.changed, m.changed)
	maps.Copy(out.changed, sets)
	return out
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Equal reports whether both have the same sets with the same addresses and ranges.
func (m SetMap) Equal(other SetMap) bool {
	if m.Len() != other.Len() {
		return false
	}
	for name, s := range m.All() {
		if o := other.Get(name); s != o && !reflect.DeepEqual(s, o) {
			return false
		}
	}
	return true
}
