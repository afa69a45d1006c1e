package kube

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// bounded keeps what a feed passes on within an allowance per namespace. A value that is dropped is
// passed on shrunk, or left out. One that is not dropped any more is read again, by its name:
//
//	object ─► allowance ─► whole, or shrunk, or not at all
//	               │ others of the namespace
//	               ├─► dropped: shrunk or left out now
//	               └─► not dropped any more ─► readAgain ─► whole, if it is still the same object
type bounded[T any] struct {
	*allowance
	// leaveOut reports whether dropped values are not passed on at all, problem is reported of their
	// namespace, and the newest objects are dropped, whatever their size.
	leaveOut bool
	// shrink returns the value without what is counted; shrunk reports whether that was done.
	shrink func(T) T
	shrunk func(T) bool
	// problem is what is reported of a dropped object.
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

// leavingOut leaves out the newest objects of a namespace beyond the limit. shrink and shrunk are
// for the time until a list is read.
func leavingOut[T any](limit int, problem string, shrink func(T) T,
	shrunk func(T) bool) *bounded[T] {
	b := newBounded(limit, problem, shrink, shrunk)
	b.leaveOut = true
	return b
}

// sizeOf returns how an object counts.
func (b *bounded[T]) sizeOf(o *object, p parsed[T]) sized {
	of := sized{elements: p.elements, version: o.ResourceVersion}
	if b.leaveOut {
		of.created = o.CreationTimestamp.Unix()
	}
	return of
}

// reading returns what shrinks the values of one list while it is read.
func (b *bounded[T]) reading() func(o *object, p parsed[T]) {
	a, values := newAllowance(b.limit), map[string]*T{}
	return func(o *object, p parsed[T]) {
		if p.elements == 0 {
			return
		}
		values[o.Namespace+"/"+o.Name] = p.value
		drop, _ := a.put(o.Namespace, o.Name, b.sizeOf(o, p))
		for _, name := range drop {
			if v := values[o.Namespace+"/"+name]; v != nil {
				*v = b.shrink(*v)
			}
		}
	}
}

// boundLocked returns an object's value within the allowance, and its problem. It shrinks what is
// dropped of the same namespace, and has read again what is not any more.
func (f *feed[T]) boundLocked(o *object, p parsed[T]) parsed[T] {
	b := f.bound
	left := b.left(o.Namespace)
	drop, restore := b.put(o.Namespace, o.Name, b.sizeOf(o, p))
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
	if b.leaveOut && b.left(o.Namespace) != left {
		f.noteLeftLocked(o.Namespace)
	}

	dropped := b.dropped(o.Namespace, o.Name)
	again := !dropped && p.value != nil && p.elements > 0 && b.shrunk(*p.value)
	if again {
		f.wantLocked(o.Namespace, o.Name)
	}
	switch {
	case !dropped && !again:
	case b.leaveOut:
		p = parsed[T]{}
	default:
		v := b.shrink(*p.value)
		p.value, p.problem = &v, b.problem
	}
	return p
}

// noteLeftLocked reports how many objects of a namespace are left out.
func (f *feed[T]) noteLeftLocked(namespace string) {
	kind, n, text := strings.TrimSpace(f.what), f.bound.left(namespace), ""
	if n > 0 {
		text = fmt.Sprintf("%s (%d now)", f.bound.problem, n)
	}
	f.client.noteLeft(LeftOut{Kind: kind, Namespace: namespace, Count: n})
	f.client.note(kind+"s of namespace "+namespace, text)
}

func (f *feed[T]) shrinkLocked(key string) {
	if f.bound.leaveOut {
		f.client.note(f.what+key, "")
		f.deleteLocked(key)
		return
	}
	old, has := f.told[key]
	if !has {
		return
	}
	f.client.note(f.what+key, f.bound.problem)
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
			if f.lacksLocked(b.turn, name) {
				return b.turn, name
			}
		}
		delete(b.wanted, b.turn)
	}
	return "", ""
}

// lacksLocked reports whether an object was dropped and is to be passed on whole.
func (f *feed[T]) lacksLocked(namespace, name string) bool {
	value, has := f.told[namespace+"/"+name]
	if f.bound.leaveOut {
		c := f.bound.find(namespace, name)
		return !has && c != nil && !c.dropped
	}
	return has && f.bound.shrunk(value)
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
				f.addLocked(o)
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
