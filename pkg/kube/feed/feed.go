package feed

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"sync"

	"github.com/kubeveil/kubeveil/internal/reflector"
	"github.com/kubeveil/kubeveil/pkg/kube/api"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
)

// Feed is a store for a reflector. It passes changes on and stores no objects. It stores the values
// that it passed on, by namespace and name, to find those that a new list lacks. Its fields must
// not change after its first use.
type Feed[T any] struct {
	Server *api.Server
	What   string // the kind, which precedes the name of an object in problems
	Parse  func(*object.Object) Parsed[T]
	// Owner returns the owner to which a value belongs, such as an EndpointSlice's service. A value
	// that moves to another owner is first deleted from the old one.
	Owner func(T) any
	// Same reports whether two values are equal. Nil compares them by reflection.
	Same func(a, b T) bool
	// Put passes on a new or changed value. Drop passes on a deleted value. Calls of Put and Drop
	// do not overlap.
	Put, Drop func(T)
	// Listed, if not nil, is called once, after the first list.
	Listed func()
	// Early passes on the values of the first list while it is read. Put must then have no effect
	// before Listed, because some may be dropped again. It must not be combined with ShrinkLargest.
	Early bool

	// bound limits the objects of each namespace. Nil means no limit.
	bound bound[T]

	mu     sync.Mutex
	passed map[string]T
	// noted holds the objects with a problem, by namespace and name.
	noted map[string]bool
	// replaced reports whether a list was read to its end.
	replaced bool
}

// bound limits the objects of each namespace. shrinkLargest passes on the largest objects without
// their content, leaveOutLast leaves out the last objects by name, and limitCount replaces all
// objects of a namespace by one value. The feed's
// lock is held during a call, unless stated otherwise.
type bound[T any] interface {
	// list begins the reading of a list. The returned function is called without the lock, for each
	// object while the list is read. It reports whether the list keeps the object.
	list() (keeps func(o *object.Object, p Parsed[T]) bool)
	// put counts an object that was added or changed, and returns what is passed on of it.
	put(o *object.Object, p Parsed[T], isNew bool) Parsed[T]
	// forget stops counting an object that was deleted or that a list lacks.
	forget(o *object.Object)
	// replace is called before put is called for all objects of a complete list, and done after
	// that. seen holds the keys of these objects.
	replace() (done func(seen map[string]bool))
	// restore passes on again objects that fit again, until ctx ends. It is called without the
	// lock.
	restore(ctx context.Context, k object.Kind, r *reflector.Reflector)
}

// Parsed is the result of parsing an object. Value is nil if there is nothing to pass on. Problem
// is a sentence about a malformed part that was dropped, or empty.
type Parsed[T any] struct {
	Value   *T
	Problem string
	// Keep reports whether the value that was passed on before stays, because the object cannot be
	// read. It needs a Problem.
	Keep bool
	// Elements is the size of the value for the bound of its namespace.
	Elements int
}

var _ api.ListReader = (*Feed[int])(nil)

// BeginList returns a function that parses an object of a list, drops its content, and reports
// whether the list keeps it.
func (f *Feed[T]) BeginList() func(*object.Object) bool {
	keeps := func(*object.Object, Parsed[T]) bool { return true }
	if f.bound != nil {
		f.mu.Lock()
		keeps = f.bound.list()
		f.mu.Unlock()
	}
	return func(o *object.Object) bool {
		p := f.reduce(o)
		if !keeps(o, p) {
			return false
		}
		f.passEarly(o, p)
		return true
	}
}

// passEarly passes on a value of the first list before the end of that list.
func (f *Feed[T]) passEarly(o *object.Object, p Parsed[T]) {
	if !f.Early || p.Value == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.replaced {
		f.passLocked(o.Namespace+"/"+o.Name, *p.Value)
	}
}

// takeBack drops a value that was passed on early.
func (f *Feed[T]) takeBack(key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.Early && !f.replaced {
		f.deleteLocked(key)
	}
}

// reduce parses o, unless it is parsed already, and drops its content.
func (f *Feed[T]) reduce(o *object.Object) Parsed[T] { return object.Parse(o, f.Parse) }

// Add passes on a new object.
func (f *Feed[T]) Add(v any) error { return f.add(v, true) }

// Update passes on a changed object.
func (f *Feed[T]) Update(v any) error { return f.add(v, false) }

func (f *Feed[T]) add(v any, isNew bool) error {
	o, ok := object.Held(v)
	if !ok {
		return fmt.Errorf("feed object: unexpected %T", v)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.addLocked(o, isNew)
	return nil
}

func (f *Feed[T]) addLocked(o *object.Object, isNew bool) {
	p, key := f.reduce(o), o.Namespace+"/"+o.Name
	if f.bound != nil {
		p = f.bound.put(o, p, isNew)
	}
	f.noteLocked(key, p.Problem)
	switch {
	case p.Keep:
	case p.Value == nil:
		f.deleteLocked(key)
	default:
		f.passLocked(key, *p.Value)
	}
}

// passLocked passes on a value, unless it was passed on before.
func (f *Feed[T]) passLocked(key string, v T) {
	old, had := f.passed[key]
	switch {
	case had && f.same(old, v):
		return
	case had && f.Owner(old) != f.Owner(v):
		f.Drop(old)
	}
	if f.passed == nil {
		f.passed = map[string]T{}
	}
	f.passed[key] = v
	f.Put(v)
}

func (f *Feed[T]) same(a, b T) bool {
	if f.Same != nil {
		return f.Same(a, b)
	}
	return reflect.DeepEqual(a, b)
}

// noteLocked sets the problem of an object; an empty text clears it.
func (f *Feed[T]) noteLocked(key, text string) {
	if text == "" {
		delete(f.noted, key)
	} else {
		if f.noted == nil {
			f.noted = map[string]bool{}
		}
		f.noted[key] = true
	}
	f.Server.Note(f.What+" "+key, text)
}

func (f *Feed[T]) deleteLocked(key string) {
	if old, had := f.passed[key]; had {
		delete(f.passed, key)
		f.Drop(old)
	}
}

// Delete passes on the deletion of an object.
func (f *Feed[T]) Delete(v any) error {
	o, ok := object.Held(v)
	if !ok {
		return fmt.Errorf("feed object: unexpected %T", v)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forgetLocked(o)
	return nil
}

// forgetLocked passes on the deletion of an object.
func (f *Feed[T]) forgetLocked(o *object.Object) {
	key := o.Namespace + "/" + o.Name
	if f.bound != nil {
		f.bound.forget(o)
	}
	f.noteLocked(key, "")
	f.deleteLocked(key)
}

// Replace passes on the differences of a complete list from the values that were passed on before.
func (f *Feed[T]) Replace(list []any, _ string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	done := func(map[string]bool) {}
	if f.bound != nil {
		done = f.bound.replace()
	}
	seen := make(map[string]bool, len(list))
	for _, v := range list {
		o, ok := object.Held(v)
		if !ok {
			return fmt.Errorf("feed list: unexpected %T", v)
		}
		seen[o.Namespace+"/"+o.Name] = true
		f.addLocked(o, false)
	}
	forgetUnseenLocked(f, seen, f.passed)
	forgetUnseenLocked(f, seen, f.noted)
	done(seen)
	if first := !f.replaced; first && f.Listed != nil {
		f.Listed()
	}
	f.replaced = true
	return nil
}

// forgetUnseenLocked passes on the deletion of the objects in known that are not in seen.
func forgetUnseenLocked[T, V any](f *Feed[T], seen map[string]bool, known map[string]V) {
	for key := range known {
		if !seen[key] {
			namespace, name, _ := strings.Cut(key, "/")
			f.forgetLocked(object.Parsed(namespace, name, Parsed[T]{}))
		}
	}
}

// Resync does nothing, because this store has no queue.
func (f *Feed[T]) Resync() error { return nil }

// Reflect runs r, which reads the list of k into f, until ctx ends.
func (f *Feed[T]) Reflect(ctx context.Context, k object.Kind, r *reflector.Reflector) {
	var wg sync.WaitGroup
	if f.bound != nil {
		wg.Go(func() { f.bound.restore(ctx, k, r) })
	}
	r.Run(ctx, f)
	wg.Wait()
}
