package kube

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// feed is a reflector's store that passes changes on and stores no objects. It remembers the values
// that it passed on, by namespace and name, to find those that a new list lacks.
type feed[T any] struct {
	client *Client
	what   string // before the name of an object, in problems
	parse  func(*object) parsed[T]
	// owner returns the owner to which a value belongs, such as an EndpointSlice's service. A value
	// that moves to another owner is first deleted from the old one.
	owner func(T) any
	put   func(T)
	drop  func(T)
	// complete is called once, after the first list.
	complete func()
	// bound bounds the objects of each namespace. Nil means no bound.
	bound *bounded[T]
	// room leaves out what exceeds the share of a namespace; nil leaves out nothing.
	room *room

	mu   sync.Mutex
	told map[string]T
	// noted are the objects with a problem, by namespace and name.
	noted map[string]bool
	once  sync.Once
}

// parsed is the result of parsing an object. value is nil if there is nothing to pass on. problem
// describes what was malformed and dropped.
type parsed[T any] struct {
	value   *T
	problem string
	// elements is the size of the value that counts for the bound of its namespace.
	elements int
}

var _ cache.TransformingStore = (*feed[int])(nil)

func newFeed[T any](c *Client, what string, parse func(*object) parsed[T],
	owner func(T) any, put, drop func(T), complete func()) *feed[T] {
	return &feed[T]{client: c, what: what, parse: parse, owner: owner, put: put, drop: drop,
		complete: complete, told: map[string]T{}, noted: map[string]bool{}}
}

// Transformer lets the reflector reduce objects while it reads a list.
func (f *feed[T]) Transformer() cache.TransformFunc {
	shrink := func(*object, parsed[T]) {}
	if f.bound != nil {
		shrink = f.bound.reading()
	}
	return func(v any) (any, error) {
		if o, ok := heldBy(v); ok {
			shrink(o, f.reduce(o))
		}
		return v, nil
	}
}

// reduce parses o once and drops its content.
func (f *feed[T]) reduce(o *object) parsed[T] {
	if p, ok := o.parsed.(parsed[T]); ok {
		return p
	}
	p := f.parse(o)
	*o = object{TypeMeta: o.TypeMeta, ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace,
		Name: o.Name, ResourceVersion: o.ResourceVersion}, parsed: p}
	return p
}

// Add passes on a new object.
func (f *feed[T]) Add(v any) error { return f.add(v, true) }

// Update passes on a changed object.
func (f *feed[T]) Update(v any) error { return f.add(v, false) }

func (f *feed[T]) add(v any, isNew bool) error {
	o, ok := heldBy(v)
	if !ok {
		return fmt.Errorf("feed object: unexpected %T", v)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.addLocked(o, isNew)
	return nil
}

func (f *feed[T]) addLocked(o *object, isNew bool) {
	p, key := f.reduce(o), o.Namespace+"/"+o.Name
	if f.bound != nil {
		p = f.boundLocked(o, p)
	}
	if f.room != nil {
		p = f.admitLocked(o, p, isNew)
	}
	f.noteLocked(key, p.problem)
	old, had := f.told[key]
	switch {
	case p.value == nil:
		f.deleteLocked(key)
	case had && reflect.DeepEqual(old, *p.value):
	default:
		if had && f.owner(old) != f.owner(*p.value) {
			f.drop(old)
		}
		f.told[key] = *p.value
		f.put(*p.value)
	}
}

// noteLocked sets the problem of an object; an empty text clears it.
func (f *feed[T]) noteLocked(key, text string) {
	if text == "" {
		delete(f.noted, key)
	} else {
		f.noted[key] = true
	}
	f.client.note(f.what+key, text)
}

func (f *feed[T]) deleteLocked(key string) {
	if old, had := f.told[key]; had {
		delete(f.told, key)
		f.drop(old)
	}
}

// Delete passes on a deletion.
func (f *feed[T]) Delete(v any) error {
	o, ok := heldBy(v)
	if !ok {
		return fmt.Errorf("feed object: unexpected %T", v)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.room != nil {
		f.leaveLocked(o)
	}
	f.forgetLocked(o.Namespace, o.Name)
	return nil
}

// forgetLocked passes on the deletion of an object.
func (f *feed[T]) forgetLocked(namespace, name string) {
	key := namespace + "/" + name
	if f.bound != nil {
		gone := &object{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		f.boundLocked(gone, parsed[T]{})
	}
	f.noteLocked(key, "")
	f.deleteLocked(key)
}

// Replace passes on how a complete list differs from what was passed on before.
func (f *feed[T]) Replace(list []any, _ string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	taken := func(map[string]bool) {}
	if f.room != nil {
		taken = f.takeListLocked()
	}
	seen := make(map[string]bool, len(list))
	for _, v := range list {
		o, ok := heldBy(v)
		if !ok {
			return fmt.Errorf("feed list: unexpected %T", v)
		}
		seen[o.Namespace+"/"+o.Name] = true
		f.addLocked(o, false)
	}
	forgetUnseenLocked(f, seen, f.told)
	forgetUnseenLocked(f, seen, f.noted)
	taken(seen)
	f.once.Do(f.complete)
	return nil
}

// forgetUnseenLocked forgets the objects of known that a list does not have.
func forgetUnseenLocked[T, V any](f *feed[T], seen map[string]bool, known map[string]V) {
	for key := range known {
		if !seen[key] {
			namespace, name, _ := strings.Cut(key, "/")
			f.forgetLocked(namespace, name)
		}
	}
}

// Resync does nothing: there is no queue behind this store.
func (f *feed[T]) Resync() error { return nil }

// giveUp reports that no list will arrive.
func (f *feed[T]) giveUp() { f.once.Do(f.complete) }

// tell runs feeds until ctx ends, and returns ctx's error. It calls listed once all feeds have read
// a list, or giveUp if ctx ends before. The client library's log is silenced.
func tell(ctx context.Context, unlisted *sync.WaitGroup, listed, giveUp func(),
	feeds ...func(context.Context)) error {
	ctx, cancel := context.WithCancel(klog.NewContext(ctx, klog.Logger{}))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for _, feed := range feeds {
		wg.Go(func() { feed(ctx) })
	}

	all := make(chan struct{})
	go func() {
		unlisted.Wait()
		close(all)
	}()
	select {
	case <-all:
		listed()
	case <-ctx.Done():
		giveUp()
	}
	<-ctx.Done()
	return ctx.Err()
}
