package policy

import (
	"iter"
	"maps"
	"reflect"
)

// SetMap holds the sets of a Plan by name. It is never changed. Consecutive plans share most of it,
// so a plan takes time in proportion to the sets that changed. The zero value is empty.
type SetMap struct {
	// base holds all names; nil means that there are none. Sets in changed replace those in base.
	base    *map[string]*Set
	changed map[string]*Set
}

// NewSetMap returns a map of sets by name, which it keeps.
func NewSetMap(sets map[string]*Set) SetMap { return SetMap{base: &sets} }

// maxChanged is the number of sets that may differ from a shared map before a new map is made.
const maxChanged = 64

// Get returns the set of a name, or nil if there is none.
func (m SetMap) Get(name string) *Set {
	if s := m.changed[name]; s != nil {
		return s
	}
	if m.base == nil {
		return nil
	}
	return (*m.base)[name]
}

// Len returns the number of sets.
func (m SetMap) Len() int {
	if m.base == nil {
		return 0
	}
	return len(*m.base)
}

// All returns all sets by name, in no order.
func (m SetMap) All() iter.Seq2[string, *Set] {
	return func(yield func(string, *Set) bool) {
		if m.base == nil {
			return
		}
		for name, s := range *m.base {
			if c := m.changed[name]; c != nil {
				s = c
			}
			if !yield(name, s) {
				return
			}
		}
	}
}

// ChangedSince returns the names of the sets that differ from an earlier plan. ok is false if any
// set may differ.
func (m SetMap) ChangedSince(before SetMap) (names []string, ok bool) {
	if m.base == nil || m.base != before.base {
		return nil, false
	}
	for name, s := range m.changed {
		if before.Get(name) != s {
			names = append(names, name)
		}
	}
	return names, true
}

// With returns the map with some sets replaced or added, by name.
func (m SetMap) With(sets map[string]*Set) SetMap {
	if len(sets) == 0 {
		return m
	}
	if len(m.changed)+len(sets) > maxChanged {
		base := make(map[string]*Set, m.Len())
		maps.Insert(base, m.All())
		maps.Copy(base, sets)
		return SetMap{base: &base}
	}
	changed := make(map[string]*Set, len(m.changed)+len(sets))
	maps.Copy(changed, m.changed)
	maps.Copy(changed, sets)
	return SetMap{base: m.base, changed: changed}
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
