package feed

import (
	"context"
	"strings"
	"sync"

	"github.com/kubeveil/kubeveil/internal/reflector"
	"github.com/kubeveil/kubeveil/pkg/kube/api"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
)

// limitCount limits the number of objects of each namespace. Of a namespace beyond the limit it
// keeps that number and nothing else:
//
//	object ─► counted ─┬─ within the limit ─► inner bound ─► feed
//	                   └─ beyond it: one value replaces all objects of the namespace
//	deletion ─► the namespace fits again ─► all is listed ─► the objects replace the value
type limitCount[T any] struct {
	feed    *Feed[T]
	inner   bound[T]
	limit   int
	problem string
	// instead passes on the value that replaces the objects of a namespace, or deletes it.
	instead func(namespace string, on bool)
	// counts holds the number of objects by namespace; over holds the namespaces beyond the limit.
	counts map[string]int
	over   map[string]bool
	// reading counts the objects of the list that is being read; nil if no list is being read.
	// replacing reports whether a complete list is being passed on.
	reading   map[string]int
	replacing bool
	// wake holds a token if a namespace may fit again.
	wake chan struct{}
}

var _ bound[int] = (*limitCount[int])(nil)

// LimitCount limits the number of objects of each namespace, in addition to ShrinkLargest, which
// must be called before. Each object must have a value. If a namespace has more objects than limit,
// all of them are deleted and problem is reported. instead is called before the deletion with true,
// and with false after the objects were passed on again. It must not block.
func (f *Feed[T]) LimitCount(limit int, problem string, instead func(namespace string, on bool)) {
	f.bound = &limitCount[T]{feed: f, inner: f.bound, limit: limit, problem: problem,
		instead: instead, counts: map[string]int{}, over: map[string]bool{},
		wake: make(chan struct{}, 1)}
}

// list counts all objects of a list, and leaves out those beyond the limit.
func (b *limitCount[T]) list() (keeps func(o *object.Object, p Parsed[T]) bool) {
	reading, inner := map[string]int{}, b.inner.list()
	b.reading = reading
	return func(o *object.Object, p Parsed[T]) bool {
		reading[o.Namespace]++
		return reading[o.Namespace] <= b.limit && inner(o, p)
	}
}

// put returns nothing for an object of a namespace beyond the limit.
func (b *limitCount[T]) put(o *object.Object, p Parsed[T], isNew bool) Parsed[T] {
	namespace := o.Namespace
	if b.over[namespace] {
		if isNew {
			b.counts[namespace]++
		}
		return Parsed[T]{}
	}
	if !b.passed(o) {
		b.counts[namespace]++
		if b.counts[namespace] > b.limit && !b.replacing {
			b.enter(namespace)
			return Parsed[T]{}
		}
	}
	return b.inner.put(o, p, isNew)
}

// passed reports whether a value of the object was passed on.
func (b *limitCount[T]) passed(o *object.Object) bool {
	_, has := b.feed.passed[o.Namespace+"/"+o.Name]
	return has
}

// enter replaces the objects of a namespace by one value.
func (b *limitCount[T]) enter(namespace string) {
	b.over[namespace] = true
	b.instead(namespace, true)
	f := b.feed
	for key := range f.passed {
		if of, name, _ := strings.Cut(key, "/"); of == namespace {
			b.inner.forget(object.Parsed(namespace, name, Parsed[T]{}))
			f.noteLocked(key, "")
			f.deleteLocked(key)
		}
	}
	b.note(namespace, b.problem)
}

func (b *limitCount[T]) note(namespace, text string) {
	b.feed.Server.Note(b.feed.What+" "+namespace+"/*", text)
}

func (b *limitCount[T]) forget(o *object.Object) {
	namespace := o.Namespace
	switch {
	case b.over[namespace]:
		if b.counts[namespace]--; b.counts[namespace] <= b.limit {
			api.Poke(b.wake)
		}
		return
	case b.passed(o):
		if b.counts[namespace]--; b.counts[namespace] == 0 {
			delete(b.counts, namespace)
		}
	}
	b.inner.forget(o)
}

// replace replaces the counts by those of the list that was read. The value of a namespace that
// fits again is deleted after the objects were passed on.
func (b *limitCount[T]) replace() (done func(seen map[string]bool)) {
	inner, read := b.inner.replace(), b.reading
	b.reading, b.replacing = nil, true
	for namespace, n := range read {
		if n > b.limit && !b.over[namespace] {
			b.enter(namespace)
		}
	}
	var fit []string
	for namespace := range b.over {
		if b.counts[namespace] = read[namespace]; read[namespace] <= b.limit {
			delete(b.over, namespace)
			fit = append(fit, namespace)
		}
	}

	return func(seen map[string]bool) {
		b.replacing = false
		inner(seen)
		counts := map[string]int{}
		for key := range seen {
			namespace, _, _ := strings.Cut(key, "/")
			counts[namespace]++
		}
		for namespace := range b.over {
			counts[namespace] = b.counts[namespace]
		}
		b.counts = counts
		for namespace, n := range counts { // Objects may have come while the list was streamed.
			if n > b.limit && !b.over[namespace] {
				b.enter(namespace)
			}
		}
		for _, namespace := range fit {
			if !b.over[namespace] {
				b.instead(namespace, false)
				b.note(namespace, "")
			}
		}
	}
}

// restore makes the reflector list all objects again when a namespace fits the limit again.
func (b *limitCount[T]) restore(ctx context.Context, k object.Kind, all *reflector.Reflector) {
	var wg sync.WaitGroup
	wg.Go(func() { b.inner.restore(ctx, k, all) })
	listAgain(ctx, b.feed.Server.Times.Fit, b.wake, all, b.mayFit)
	wg.Wait()
}

// mayFit reports whether any namespace beyond the limit may fit again.
func (b *limitCount[T]) mayFit() bool {
	b.feed.mu.Lock()
	defer b.feed.mu.Unlock()
	for namespace := range b.over {
		if b.counts[namespace] <= b.limit {
			return true
		}
	}
	return false
}
