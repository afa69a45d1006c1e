package kube

import (
	"fmt"
	"maps"
	"sync"

	"github.com/kubeveil/kubeveil/pkg/kube/api"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
)

// store keeps what was parsed of one kind, by name. It is the reflector's
// store: a list replaces the whole at once, so a reader never sees half of one.
type store[T any] struct {
	parse   func(*object.Object) T
	same    func(a, b T) bool
	changed func() // must not block

	mu     sync.Mutex
	byName map[string]T
	synced bool
}

var _ api.ListReader = (*store[nodeEntry])(nil)

// BeginList returns what reduces the objects of one list to what was parsed.
func (s *store[T]) BeginList() func(*object.Object) bool {
	return func(o *object.Object) bool {
		s.reduce(o)
		return true
	}
}

// reduce parses o once and drops its content.
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
	s.mu.Unlock()
	if !known || !s.same(old, t) {
		s.changed()
	}
	return nil
}

// replace adds or replaces an object if may, called with the present entry, returns true.
func (s *store[T]) replace(o *object.Object, may func(now T, has bool) bool) bool {
	t := s.reduce(o)
	s.mu.Lock()
	now, has := s.byName[o.Name]
	took := may(now, has)
	if took {
		s.byName[o.Name] = t
	}
	s.mu.Unlock()
	if took {
		s.changed()
	}
	return took
}

// Update is Add.
func (s *store[T]) Update(v any) error { return s.Add(v) }

// Delete removes an object.
func (s *store[T]) Delete(v any) error {
	o, ok := object.Held(v)
	if !ok {
		return fmt.Errorf("store object: unexpected %T", v)
	}
	s.mu.Lock()
	delete(s.byName, o.Name)
	s.mu.Unlock()
	s.changed()
	return nil
}

// Replace takes a complete list.
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
	s.mu.Unlock()
	s.changed()
	return nil
}

// Resync does nothing: there is no queue behind this store.
func (s *store[T]) Resync() error { return nil }

// get returns one entry.
func (s *store[T]) get(name string) (T, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.byName[name]
	return t, ok
}

// all copies the entries; synced reports whether a list has been read.
func (s *store[T]) all() (byName map[string]T, synced bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.byName), s.synced
}

func newStore[T any](parse func(*object.Object) T, same func(a, b T) bool,
	changed func()) *store[T] {
	return &store[T]{parse: parse, same: same, changed: changed, byName: map[string]T{}}
}
