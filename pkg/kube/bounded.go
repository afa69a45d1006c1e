package kube

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// bounded keeps the values that a feed passes on within an allowance per namespace. A value that is
// dropped is passed on shrunk. A value that is no longer dropped is read again, by its name:
//
//	object ─► allowance ─► whole, or shrunk
//	               │ others of the namespace
//	               ├─► dropped: shrunk now
//	               └─► not dropped any more ─► readAgain ─► whole, if it is still the same object
type bounded[T any] struct {
	*allowance
	// shrink returns the value without what is counted; shrunk reports whether that was done.
	shrink func(T) T
	shrunk func(T) bool
	// problem is the text that is reported for a dropped object.
	problem string
	// wanted are the names of objects to read again, by namespace; turn is the namespace that came
	// last. wake holds a token when there are some.
	wanted map[string]map[string]bool
	turn   string
	wake   chan struct{}
}

func newBounded[T any](limit int, problem string, shrink func(T) T,
	shrunk func(T) bool) *bounded[T] {
	return &bounded[T]{allowance: newAllowance(limit), shrink: shrink, shrunk: shrunk,
		problem: problem, wanted: map[string]map[string]bool{}, wake: make(chan struct{}, 1)}
}

// reading returns a function that shrinks the values of one list while the list is read.
func (b *bounded[T]) reading() func(o *object, p parsed[T]) {
	a, values := newAllowance(b.limit), map[string]*T{}
	return func(o *object, p parsed[T]) {
		if p.elements == 0 {
			return
		}
		values[o.Namespace+"/"+o.Name] = p.value
		drop, _ := a.put(o.Namespace, o.Name, sized{p.elements, o.ResourceVersion})
		if a.dropped(o.Namespace, o.Name) {
			drop = append(drop, o.Name)
		}
		for _, name := range drop {
			v := values[o.Namespace+"/"+name]
			*v = b.shrink(*v)
		}
	}
}

// boundLocked returns an object's value within the allowance, and its problem. It shrinks the
// objects of the same namespace that are now dropped, and queues a new read of those that are no
// longer dropped.
func (f *feed[T]) boundLocked(o *object, p parsed[T]) parsed[T] {
	b := f.bound
	drop, restore := b.put(o.Namespace, o.Name, sized{p.elements, o.ResourceVersion})
	for _, name := range drop {
		if name != o.Name {
			f.shrinkLocked(o.Namespace + "/" + name)
		}
	}
	for _, name := range restore {
		if name != o.Name {
			f.wantLocked(o.Namespace, name)
		}
	}

	switch {
	case p.elements == 0:
	case b.dropped(o.Namespace, o.Name):
		v := b.shrink(*p.value)
		p.value, p.problem = &v, b.problem
	case b.shrunk(*p.value):
		p.problem = b.problem
		f.wantLocked(o.Namespace, o.Name)
	}
	return p
}

func (f *feed[T]) shrinkLocked(key string) {
	old, has := f.told[key]
	if !has {
		return
	}
	f.noteLocked(key, f.bound.problem)
	if !f.bound.shrunk(old) {
		f.told[key] = f.bound.shrink(old)
		f.put(f.told[key])
	}
}

func (f *feed[T]) wantLocked(namespace, name string) {
	names := f.bound.wanted[namespace]
	if names == nil {
		names = map[string]bool{}
		f.bound.wanted[namespace] = names
	}
	names[name] = true
	poke(f.bound.wake)
}

// readAgain reads the objects that are not dropped any more, one a second, until ctx ends.
func (f *feed[T]) readAgain(ctx context.Context, k kind) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.bound.wake:
		}
		for namespace, name := f.next(); name != ""; namespace, name = f.next() {
			err := f.readOne(ctx, k, namespace, name)
			f.client.report("read again "+k.what, explain("list", k, err))
			select {
			case <-ctx.Done():
				return
			case <-time.After(f.client.times.single):
			}
			if err != nil {
				f.mu.Lock()
				f.wantLocked(namespace, name)
				f.mu.Unlock()
			}
		}
	}
}

// next takes one of the wanted objects; name is empty if there is none. Namespaces take turns, so
// that one with many objects does not hold up the others.
func (f *feed[T]) next() (namespace, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	b := f.bound
	for len(b.wanted) > 0 {
		all := slices.Sorted(maps.Keys(b.wanted))
		at, found := slices.BinarySearch(all, b.turn)
		if found {
			at++
		}
		b.turn = all[at%len(all)]
		for name := range b.wanted[b.turn] {
			delete(b.wanted[b.turn], name)
			if value, has := f.told[b.turn+"/"+name]; has && b.shrunk(value) {
				return b.turn, name
			}
		}
		delete(b.wanted, b.turn)
	}
	return "", ""
}

// readOne reads one object. It counts if it is the one that was dropped; a later one comes by the
// watch.
func (f *feed[T]) readOne(ctx context.Context, k kind, namespace, name string) error {
	ctx, cancel := context.WithTimeout(ctx, f.client.times.request)
	defer cancel()
	return f.client.get(ctx, k.single(namespace, name), metav1.ListOptions{}, k.list(),
		func(v any) (any, error) {
			o, _ := heldBy(v)
			f.reduce(o)
			f.mu.Lock()
			defer f.mu.Unlock()
			if c := f.bound.find(namespace, name); c != nil && c.version == o.ResourceVersion {
				f.addLocked(o, false)
			}
			return v, nil
		})
}

// single restricts a kind to one object.
func (k kind) single(namespace, name string) kind {
	path := k.path[len(k.path)-1]
	last := strings.LastIndex(path, "/")
	k.path = []string{path[:last] + "/namespaces/" + namespace + path[last:]}
	k.name = name
	return k
}
