package feed

import (
	"context"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/internal/reflector"
	"github.com/kubeveil/kubeveil/pkg/kube/api"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
	"github.com/kubeveil/kubeveil/pkg/kube/quota"
)

// shrinkLargest limits the values of a feed to an allowance per namespace. A value that the
// allowance drops is passed on shrunk. When the allowance does not drop it any more, the object is
// read again by its name:
//
//	object ─► allowance ─► whole, or shrunk
//	               │ others of the namespace
//	               ├─► dropped: shrunk now
//	               └─► not dropped any more ─► restore ─► whole, if it is still the same object
type shrinkLargest[T any] struct {
	feed  *Feed[T]
	limit int
	sizes *quota.Allowance
	// shrink returns the value without its counted content. shrunk reports whether that was done.
	shrink func(T) T
	shrunk func(T) bool
	// problem is the text that is reported for a dropped object.
	problem string
	// wanted holds the names of objects to read again, by namespace. turn is the namespace of the
	// last read. wake holds a token if there are objects in wanted.
	wanted map[string]map[string]bool
	turn   string
	wake   chan struct{}
}

var _ bound[int] = (*shrinkLargest[int])(nil)

// ShrinkLargest limits the elements of the objects of each namespace. It shrinks the largest
// objects, until the others are within limit. shrink returns a value without its counted content,
// and shrunk reports whether that was done. problem is reported for a shrunk object.
func (f *Feed[T]) ShrinkLargest(limit int, problem string, shrink func(T) T, shrunk func(T) bool) {
	f.bound = &shrinkLargest[T]{feed: f, limit: limit, sizes: quota.NewAllowance(limit),
		shrink: shrink, shrunk: shrunk, problem: problem, wanted: map[string]map[string]bool{},
		wake: make(chan struct{}, 1)}
}

// list shrinks the values of a list while the list is read.
func (b *shrinkLargest[T]) list() (keeps func(o *object.Object, p Parsed[T]) bool) {
	a, values := quota.NewAllowance(b.limit), map[string]*T{}
	return func(o *object.Object, p Parsed[T]) bool {
		if p.Elements == 0 {
			return true
		}
		values[o.Namespace+"/"+o.Name] = p.Value
		drop, _ := a.Put(o.Namespace, o.Name, sizeOf(o, p))
		if a.Dropped(o.Namespace, o.Name) {
			drop = append(drop, o.Name)
		}
		for _, name := range drop {
			v := values[o.Namespace+"/"+name]
			*v = b.shrink(*v)
		}
		return true
	}
}

func sizeOf[T any](o *object.Object, p Parsed[T]) quota.Size {
	return quota.Size{Elements: p.Elements, Version: o.ResourceVersion}
}

// put returns the value of an object, shrunk if the allowance drops it, and its problem. It shrinks
// other objects of the namespace that are dropped now. It requests new reads of those that are not
// dropped any more.
func (b *shrinkLargest[T]) put(o *object.Object, p Parsed[T], _ bool) Parsed[T] {
	drop, restore := b.sizes.Put(o.Namespace, o.Name, sizeOf(o, p))
	for _, name := range drop {
		if name != o.Name {
			b.drop(o.Namespace + "/" + name)
		}
	}
	for _, name := range restore {
		if name != o.Name {
			b.want(o.Namespace, name)
		}
	}

	switch {
	case p.Elements == 0:
	case b.sizes.Dropped(o.Namespace, o.Name):
		v := b.shrink(*p.Value)
		p.Value, p.Problem = &v, b.problem
	case b.shrunk(*p.Value):
		p.Problem = b.problem
		b.want(o.Namespace, o.Name)
	}
	return p
}

func (b *shrinkLargest[T]) forget(o *object.Object) { b.put(o, Parsed[T]{}, false) }

func (b *shrinkLargest[T]) replace() (done func(seen map[string]bool)) {
	return func(map[string]bool) {}
}

// drop shrinks a value that was passed on, and passes it on again.
func (b *shrinkLargest[T]) drop(key string) {
	f := b.feed
	old, has := f.passed[key]
	if !has {
		return
	}
	f.noteLocked(key, b.problem)
	if !b.shrunk(old) {
		f.passed[key] = b.shrink(old)
		f.Put(f.passed[key])
	}
}

// want requests a new read of an object.
func (b *shrinkLargest[T]) want(namespace, name string) {
	names := b.wanted[namespace]
	if names == nil {
		names = map[string]bool{}
		b.wanted[namespace] = names
	}
	names[name] = true
	api.Poke(b.wake)
}

// restore reads the wanted objects one by one, with a pause of Times.Single after each.
func (b *shrinkLargest[T]) restore(ctx context.Context, k object.Kind, _ *reflector.Reflector) {
	s := b.feed.Server
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.wake:
		}
		for namespace, name := b.next(); name != ""; namespace, name = b.next() {
			err := b.readOne(ctx, k, namespace, name)
			s.Report("read again "+k.What, api.Explain("list", k, err))
			select {
			case <-ctx.Done():
				return
			case <-time.After(s.Times.Single):
			}
			if err != nil {
				b.feed.mu.Lock()
				b.want(namespace, name)
				b.feed.mu.Unlock()
			}
		}
	}
}

// next removes and returns one of the wanted objects. name is empty if there is none. Namespaces
// alternate, so that a namespace with many objects does not delay the others.
func (b *shrinkLargest[T]) next() (namespace, name string) {
	b.feed.mu.Lock()
	defer b.feed.mu.Unlock()
	for len(b.wanted) > 0 {
		all := slices.Sorted(maps.Keys(b.wanted))
		at, found := slices.BinarySearch(all, b.turn)
		if found {
			at++
		}
		b.turn = all[at%len(all)]
		for name := range b.wanted[b.turn] {
			delete(b.wanted[b.turn], name)
			if value, has := b.feed.passed[b.turn+"/"+name]; has && b.shrunk(value) {
				return b.turn, name
			}
		}
		delete(b.wanted, b.turn)
	}
	return "", ""
}

// readOne reads one object, and passes it on if it still has the version that was dropped.
// Otherwise the watch delivers the newer version.
func (b *shrinkLargest[T]) readOne(ctx context.Context, k object.Kind, namespace,
	name string) error {
	f := b.feed
	ctx, cancel := context.WithTimeout(ctx, f.Server.Times.Request)
	defer cancel()
	k = k.In(namespace)
	k.Name = name
	_, err := f.Server.Get(ctx, k, metav1.ListOptions{}, func(o *object.Object) bool {
		f.reduce(o)
		f.mu.Lock()
		defer f.mu.Unlock()
		if b.sizes.Has(namespace, name, o.ResourceVersion) {
			f.addLocked(o, false)
		}
		return true
	})
	return err
}
