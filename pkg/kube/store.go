package kube

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/kubeveil/kubeveil/pkg/kube/api"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
)

// store holds the parsed objects of one kind, by name. A reflector fills it. A list replaces the
// whole content at once, so a reader never sees a part of a list.
type store[T any] struct {
	parse   func(*object.Object) T
	same    func(a, b T) bool
	changed func() // must not block

	mu     sync.Mutex
	byName map[string]T
	synced bool
	// readers holds, for each follow, the changes that no take has returned yet.
	readers []*touched
}

// touched holds the names of objects that were added, changed or deleted.
type touched struct {
	names map[string]bool
	// all reports whether a list replaced all objects. names then has later changes only.
	all bool
}

// follow begins a list of changes, whose first take returns all objects. The reader must take them
// until it calls unfollow.
func (s *store[T]) follow() *touched {
	r := &touched{names: map[string]bool{}, all: true}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readers = append(s.readers, r)
	return r
}

// unfollow ends a list of changes.
func (s *store[T]) unfollow(r *touched) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readers = slices.DeleteFunc(s.readers, func(o *touched) bool { return o == r })
}

// take returns the changes since the last take of a reader. synced reports whether a list has been
// read.
func (s *store[T]) take(r *touched) (t touched, synced bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, *r = *r, touched{names: map[string]bool{}}
	return t, s.synced
}

// touchLocked records a change of an object.
func (s *store[T]) touchLocked(name string) {
	for _, r := range s.readers {
		r.names[name] = true
	}
}

var _ api.ListReader = (*store[nodeEntry])(nil)

// BeginList returns a function that parses an object of a list and drops its content. It keeps
// every object.
func (s *store[T]) BeginList() func(*object.Object) bool {
	return func(o *object.Object) bool {
		s.reduce(o)
		return true
	}
}

// reduce parses o, unless it is parsed already, and drops its content.
func (s *store[T]) reduce(o *object.Object) T { return object.Parse(o, s.parse) }

// Add adds or replaces an object.
func (s *store[T]) Add(v any) error {
	o, ok := object.Held(v)
	if !ok {
		return fmt.Errorf("store object: unexpected %T", v)
	}
	t := s.reduce(o)
	s.mu.Lock()
	old, known := s.byName[o.Name]
	s.byName[o.Name] = t
	changed := !known || !s.same(old, t)
	if changed {
		s.touchLocked(o.Name)
	}
	s.mu.Unlock()
	if changed {
		s.changed()
	}
	return nil
}

// replace adds or replaces an object if may returns true for the current entry. It reports whether
// it did.
func (s *store[T]) replace(o *object.Object, may func(now T, has bool) bool) bool {
	t := s.reduce(o)
	s.mu.Lock()
	now, has := s.byName[o.Name]
	took := may(now, has)
	if took {
		s.byName[o.Name] = t
		s.touchLocked(o.Name)
	}
	s.mu.Unlock()
	if took {
		s.changed()
	}
	return took
}

// Update adds or replaces an object, as Add does.
func (s *store[T]) Update(v any) error { return s.Add(v) }

// Delete removes an object.
func (s *store[T]) Delete(v any) error {
	o, ok := object.Held(v)
	if !ok {
		return fmt.Errorf("store object: unexpected %T", v)
	}
	s.mu.Lock()
	delete(s.byName, o.Name)
	s.touchLocked(o.Name)
	s.mu.Unlock()
	s.changed()
	return nil
}

// Replace replaces all objects by a complete list.
func (s *store[T]) Replace(list []any, _ string) error {
	byName := make(map[string]T, len(list))
	for _, v := range list {
		o, ok := object.Held(v)
		if !ok {
			return fmt.Errorf("store list: unexpected %T", v)
		}
		byName[o.Name] = s.reduce(o)
	}
	s.mu.Lock()
	s.byName, s.synced = byName, true
	for _, r := range s.readers {
		*r = touched{names: map[string]bool{}, all: true}
	}
	s.mu.Unlock()
	s.changed()
	return nil
}

// Resync does nothing, because this store has no queue.
func (s *store[T]) Resync() error { return nil }

// get returns the entry of an object.
func (s *store[T]) get(name string) (T, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.byName[name]
	return t, ok
}

// listed reports whether a list has been read.
func (s *store[T]) listed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.synced
}

// all returns a copy of the entries. synced reports whether a list has been read.
func (s *store[T]) all() (byName map[string]T, synced bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.byName), s.synced
}

func newStore[T any](parse func(*object.Object) T, same func(a, b T) bool,
	changed func()) *store[T] {
	return &store[T]{parse: parse, same: same, changed: changed, byName: map[string]T{}}
}
