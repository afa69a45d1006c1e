package kube

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/kubeveil/kubeveil/internal/reflector"
	"github.com/kubeveil/kubeveil/pkg/service"
)

// maxFitPause is how many times the first pause before a list of what was left out the last one is.
const maxFitPause = 16

// room leaves out of a feed what exceeds the share of a namespace. What is left out is forgotten:
//
//	list or stream ─► reading ─► first by name ─► quota ─► feed
//	change ─────────────────────────────────────►   │
//	                                                └─► a namespace may fit: all is listed
type room struct {
	*quota
	// reading counts the objects of the list that is read at present; nil if there is none.
	reading *quota
	// problem is reported for a namespace from which objects are left out.
	problem string
	// wake holds a token when a namespace may fit again.
	wake chan struct{}
}

func newRoom(limit, least int, problem string) *room {
	return &room{quota: newQuota(limit, least), problem: problem, wake: make(chan struct{}, 1)}
}

// sharing is a store that leaves out objects of a list while it is read.
type sharing interface {
	// leavingOut returns what reads the objects of one list, and returns nil for one that is left
	// out; or nil if the store leaves out none.
	leavingOut() cache.TransformFunc
}

// leavingOut begins a list. An object with nothing to pass on is left out, too.
func (f *feed[T]) leavingOut() cache.TransformFunc {
	if f.room == nil {
		return nil
	}
	f.mu.Lock()
	reading := newQuota(f.room.limit, f.room.least)
	f.room.reading = reading
	f.mu.Unlock()
	return func(v any) (any, error) {
		o, ok := heldBy(v)
		if !ok {
			return v, nil
		}
		p := f.reduce(o)
		if p.elements == 0 {
			return nil, nil
		}
		if kept, _ := reading.put(o.Namespace, o.Name, p.elements, true); !kept {
			return nil, nil
		}
		return v, nil
	}
}

// admitLocked returns an object's value within the share of its namespace, or nothing.
func (f *feed[T]) admitLocked(o *object, p parsed[T], isNew bool) parsed[T] {
	r, before := f.room, f.room.standing(o.Namespace)
	if p.elements == 0 {
		r.remove(o.Namespace, o.Name)
	} else {
		kept, gone := r.put(o.Namespace, o.Name, p.elements, isNew)
		for _, name := range gone {
			f.noteLocked(o.Namespace+"/"+name, "")
			f.deleteLocked(o.Namespace + "/" + name)
		}
		if !kept {
			p = parsed[T]{}
		}
	}
	f.leftLocked(o.Namespace, before)
	return p
}

// leaveLocked counts an object less, which was deleted.
func (f *feed[T]) leaveLocked(o *object) {
	r, before := f.room, f.room.standing(o.Namespace)
	if !r.remove(o.Namespace, o.Name) && f.reduce(o).elements > 0 {
		r.gone(o.Namespace)
	}
	f.leftLocked(o.Namespace, before)
}

// leftLocked reports what is left out of a namespace, unless that is as before. It has all listed
// again if the namespace needs less and may fit.
func (f *feed[T]) leftLocked(namespace string, before standing) {
	now := f.room.standing(namespace)
	if now.need < before.need && f.room.mayFit(namespace) {
		poke(f.room.wake)
	}
	if now.left == before.left && now.from == before.from {
		return
	}

	kind, text := strings.TrimSpace(f.what), ""
	if now.from != "" {
		text = fmt.Sprintf("%s (from %q on by name, %d now)", f.room.problem, now.from, now.left)
	}
	f.client.noteLeft(service.LeftOut{Kind: kind, Namespace: namespace, Count: now.left})
	f.client.note(kind+"s of namespace "+namespace, text)
}

// takeListLocked replaces what is counted by what a list has. It returns what reports the
// difference once the list was passed on; seen has the keys of its objects.
func (f *feed[T]) takeListLocked() (done func(seen map[string]bool)) {
	before := f.room.quota
	if f.room.reading != nil {
		f.room.quota, f.room.reading = f.room.reading, nil
	}
	return func(seen map[string]bool) {
		for namespace, p := range before.spaces {
			f.leftLocked(namespace, standing{left: p.left, from: p.from})
		}
		for namespace := range f.room.spaces {
			if before.spaces[namespace] == nil {
				f.leftLocked(namespace, standing{})
			}
		}

		for namespace, p := range f.room.spaces {
			for name := range p.objects { // deleted while the list was streamed
				if !seen[namespace+"/"+name] {
					f.room.remove(namespace, name)
				}
			}
		}
	}
}

// reflect keeps a feed with room like the API server's list of k, until ctx ends. It lists all
// again when a namespace may fit in its share again: after 1 to 1.5 pauses, and after longer ones
// while that repeats.
func (f *feed[T]) reflect(ctx context.Context, k kind) {
	r := f.client.reflector(k, f)
	var wg sync.WaitGroup
	wg.Go(func() { f.listAgain(ctx, r) })
	r.Run(ctx, f)
	wg.Wait()
}

func (f *feed[T]) listAgain(ctx context.Context, r *reflector.Reflector) {
	least := f.client.times.fit
	pause, last := least, time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.room.wake:
		}
		if time.Since(last) > 2*maxFitPause*least {
			pause = least
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause + rand.N(pause/2)):
		}

		if f.mayFit() {
			r.ReadAgain()
			pause, last = min(2*pause, maxFitPause*least), time.Now()
		}
	}
}

// mayFit reports whether a namespace may fit in its share again.
func (f *feed[T]) mayFit() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for namespace := range f.room.spaces {
		if f.room.mayFit(namespace) {
			return true
		}
	}
	return false
}

// shortened is a watch that streams a list first, without the objects that are left out of it.
type shortened struct {
	watch.Interface
	events  chan watch.Event
	stopped chan struct{}
	once    sync.Once
}

// leaveOut returns w without the objects that transform makes nil, up to the end of the list.
func leaveOut(w watch.Interface, transform cache.TransformFunc) watch.Interface {
	s := &shortened{Interface: w, events: make(chan watch.Event), stopped: make(chan struct{})}
	go s.run(transform)
	return s
}

// ResultChan returns the events.
func (s *shortened) ResultChan() <-chan watch.Event { return s.events }

// Stop ends the watch; it may be called again.
func (s *shortened) Stop() {
	s.once.Do(func() {
		close(s.stopped)
		s.Interface.Stop()
	})
}

func (s *shortened) run(transform cache.TransformFunc) {
	defer close(s.events)
	listed := false
	for e := range s.Interface.ResultChan() {
		o, ok := heldBy(e.Object)
		switch {
		case !ok || listed:
		case e.Type == watch.Bookmark:
			listed = o.Annotations[metav1.InitialEventsAnnotationKey] == "true"
		case e.Type == watch.Added:
			if v, err := transform(e.Object); err == nil && v == nil {
				continue
			}
		}
		select {
		case s.events <- e:
		case <-s.stopped:
			return
		}
	}
}
