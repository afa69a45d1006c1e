package inventory

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/pkg/kube/api"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
	"github.com/kubeveil/kubeveil/pkg/site/record"
)

// store holds the parsed objects of one kind. A reflector fills it. Names of cluster-scoped objects
// have an empty namespace.
type store[T any] struct {
	parse   func(*object.Object) T
	changed func() // must not block
	limits  *limits[T]

	mu      sync.Mutex
	objects map[record.Key]T
	listed  bool
	first   chan struct{} // is closed when listed is set
	// mark is wanted.mark of the beginning of the last list.
	mark uint64
	// touched holds the objects that a watch changed or deleted since a read began. It is nil while
	// nothing is read, and after a list has replaced the objects.
	touched map[record.Key]bool
	// weights holds the weight of the objects of each namespace. left holds, for each namespace, the
	// objects that are not kept because it is too large, at most MaxLeft. more has the namespaces
	// with others.
	weights map[string]int
	left    map[string]map[record.Key]leftOut
	more    map[string]bool
}

// leftOut is an object that is not kept.
type leftOut struct {
	service record.Key
	weight  int
}

// limits decides which objects a store keeps. A nil *limits keeps all.
type limits[T any] struct {
	wanted *wanted
	// kept reports whether an object is kept.
	kept func(*object.Object) bool
	// service returns the service to which an object belongs.
	service func(record.Key, T) record.Key
	// weight is what an object takes of MaxWeight.
	weight func(T) int
}

// MaxWeight bounds the weight of the objects of one namespace in a store.
const MaxWeight = 2 * record.MaxAllEndpoints

// MaxLeft bounds the objects of a namespace that are counted as left out.
const MaxLeft = 10_000

// mostReturning bounds the services of a namespace that are read again at a time, because some of
// their objects were left out.
const mostReturning = 32

var _ api.ListReader = (*store[struct{}])(nil)

func newStore[T any](parse func(*object.Object) T, changed func()) *store[T] {
	return &store[T]{parse: parse, changed: changed, objects: map[record.Key]T{},
		first: make(chan struct{}), weights: map[string]int{},
		left: map[string]map[record.Key]leftOut{}, more: map[string]bool{}}
}

func keyOf(o *object.Object) record.Key { return record.Key{Namespace: o.Namespace, Name: o.Name} }

// keeps reports whether an object is kept, except for its weight.
func (s *store[T]) keeps(o *object.Object) bool { return s.limits == nil || s.limits.kept(o) }

// BeginList returns a function that parses an object and drops its content.
func (s *store[T]) BeginList() func(*object.Object) bool {
	if s.limits != nil {
		s.mu.Lock()
		s.mark = s.limits.wanted.mark()
		s.mu.Unlock()
	}
	return func(o *object.Object) bool {
		if !s.keeps(o) {
			return false
		}
		object.Parse(o, s.parse)
		return true
	}
}

// Add adds or replaces an object, or removes it if it is not kept.
func (s *store[T]) Add(v any) error { return s.event(v, s.keeps) }

// Update adds or replaces an object.
func (s *store[T]) Update(v any) error { return s.Add(v) }

// Delete removes an object.
func (s *store[T]) Delete(v any) error {
	return s.event(v, func(*object.Object) bool { return false })
}

// event puts or removes the object of an event. Whether it is kept is decided under the lock: an
// event of a service that was not wanted yet must not count as one during the read of its objects.
func (s *store[T]) event(v any, keeps func(*object.Object) bool) error {
	o, ok := object.Held(v)
	if !ok {
		return fmt.Errorf("store object: unexpected %T", v)
	}
	k := keyOf(o)
	s.mu.Lock()
	if s.touched != nil {
		s.touched[k] = true
	}
	_, changed := s.objects[k]
	if keeps(o) {
		s.putLocked(k, object.Parse(o, s.parse))
		changed = true
	} else {
		s.deleteLocked(k)
	}
	s.mu.Unlock()

	if changed {
		s.changed()
	}
	return nil
}

// Replace replaces all objects by a complete list. Objects of a service that became wanted during
// the list may be missing from it. They stay, and are read again. A read that is under way begins
// again.
func (s *store[T]) Replace(list []any, _ string) error {
	objects := make(map[record.Key]T, len(list))
	for _, v := range list {
		o, ok := object.Held(v)
		if !ok {
			return fmt.Errorf("store list: unexpected %T", v)
		}
		objects[keyOf(o)] = object.Parse(o, s.parse)
	}

	s.mu.Lock()
	if l := s.limits; l != nil {
		for k, t := range s.objects {
			if _, is := objects[k]; !is && l.wanted.newer(l.service(k, t), s.mark) {
				objects[k] = t
			}
		}
	}
	s.objects, s.left = make(map[record.Key]T, len(objects)), map[string]map[record.Key]leftOut{}
	s.weights, s.more, s.touched = map[string]int{}, map[string]bool{}, nil
	for k, t := range objects {
		s.putLocked(k, t)
	}
	was := s.listed
	s.listed = true
	s.mu.Unlock()
	s.changed()
	if !was {
		close(s.first)
	}
	return nil
}

// putLocked adds or replaces an object, unless its namespace has too many.
func (s *store[T]) putLocked(k record.Key, t T) {
	s.deleteLocked(k)
	if s.limits != nil {
		weight := s.limits.weight(t)
		if s.weights[k.Namespace]+weight > MaxWeight {
			s.leaveOutLocked(k, leftOut{s.limits.service(k, t), weight})
			return
		}
		s.weights[k.Namespace] += weight
	}
	s.objects[k] = t
}

// leaveOutLocked counts an object that is not kept.
func (s *store[T]) leaveOutLocked(k record.Key, o leftOut) {
	left := s.left[k.Namespace]
	if left == nil {
		left = map[record.Key]leftOut{}
		s.left[k.Namespace] = left
	}
	if len(left) == MaxLeft {
		s.more[k.Namespace] = true
		return
	}
	left[k] = o
}

// deleteLocked removes an object, if it is there.
func (s *store[T]) deleteLocked(k record.Key) {
	t, had := s.objects[k]
	if had && s.limits != nil {
		s.weights[k.Namespace] -= s.limits.weight(t)
	}
	delete(s.objects, k)
	delete(s.left[k.Namespace], k)
}

// forget removes the objects of services that are not wanted any more.
func (s *store[T]) forget(ours func(T) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, t := range s.objects {
		if !ours(t) && !derivedName.MatchString(k.Name) && !s.limits.wanted.has(s.limits.service(k, t)) {
			s.deleteLocked(k)
		}
	}
	for _, left := range s.left {
		maps.DeleteFunc(left, func(_ record.Key, o leftOut) bool {
			return !s.limits.wanted.has(o.service)
		})
	}
}

// returning returns services some of whose objects were left out and have room now, at most
// mostReturning of each namespace. They must be read again: the objects are not known any more.
func (s *store[T]) returning() (services []record.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for namespace, left := range s.left {
		room := MaxWeight - s.weights[namespace]
		fit := map[record.Key]bool{}
		for _, k := range slices.SortedFunc(maps.Keys(left), func(a, b record.Key) int {
			return strings.Compare(a.Name, b.Name)
		}) {
			if o := left[k]; o.weight <= room && (fit[o.service] || len(fit) < mostReturning) {
				room, fit[o.service] = room-o.weight, true
			}
		}
		services = slices.AppendSeq(services, maps.Keys(fit))

		if len(left) > 0 {
			continue
		}
		delete(s.left, namespace)
		if s.more[namespace] {
			delete(s.more, namespace)
			services = append(services, s.limits.wanted.in(namespace)...)
		}
	}
	return services
}

// read reads the objects of a service, which kind selects. What a watch reports meanwhile counts
// more.
func (s *store[T]) read(ctx context.Context, server *api.Server, kind object.Kind,
	service record.Key) error {
	for {
		done, err := s.readOnce(ctx, server, kind, service)
		if done || err != nil {
			return err
		}
	}
}

// readOnce is read. It changes nothing and returns false if a list was stored meanwhile, because it
// is not known which of the two is newer.
func (s *store[T]) readOnce(ctx context.Context, server *api.Server, kind object.Kind,
	service record.Key) (done bool, err error) {
	s.mu.Lock()
	s.touched = map[record.Key]bool{}
	s.mu.Unlock()
	found := map[record.Key]T{}
	_, err = server.Get(ctx, kind, metav1.ListOptions{}, func(o *object.Object) bool {
		if s.keeps(o) {
			found[keyOf(o)] = object.Parse(o, s.parse)
		}
		return false
	})

	s.mu.Lock()
	defer s.mu.Unlock()
	touched := s.touched
	s.touched = nil
	switch {
	case err != nil:
		return false, api.Explain("list", kind, err)
	case touched == nil:
		return false, nil
	case !s.limits.wanted.has(service):
		return true, nil
	}
	for k, t := range found {
		if !touched[k] {
			s.putLocked(k, t)
		}
	}

	gone := func(k, of record.Key) bool {
		_, is := found[k]
		return !is && !touched[k] && of == service
	}
	for k, t := range s.objects {
		if gone(k, s.limits.service(k, t)) {
			s.deleteLocked(k)
		}
	}
	maps.DeleteFunc(s.left[service.Namespace], func(k record.Key, o leftOut) bool {
		return gone(k, o.service)
	})
	return true, nil
}

// Resync does nothing, because this store has no queue.
func (s *store[T]) Resync() error { return nil }

// all returns a copy of the objects. listed reports whether a list was read.
func (s *store[T]) all() (objects map[record.Key]T, listed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.objects), s.listed
}

// beyond returns how many objects are left out because their namespace has too many, and reports
// whether there are more.
func (s *store[T]) beyond() (n int, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, left := range s.left {
		n += len(left)
	}
	return n, len(s.more) > 0
}
