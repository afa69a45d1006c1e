package feed

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/internal/reflector"
	"github.com/kubeveil/kubeveil/pkg/kube/api"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
	"github.com/kubeveil/kubeveil/pkg/kube/quota"
)

// maxFitPause is the ratio of the longest to the shortest pause before a new list in listAgain.
const maxFitPause = 16

// leaveOutLast leaves out objects that exceed the share of their namespace, and stores nothing
// about them:
//
//	list or stream ─► reading ─► first by name ─► share ─► feed
//	change ─────────────────────────────────────►   │
//	                                                └─► a namespace may fit: all is listed
type leaveOutLast[T any] struct {
	feed         *Feed[T]
	limit, least int
	share        *quota.Share
	// reading counts the objects of the list that is being read; nil if no list is being read.
	reading *quota.Share
	// problem is reported for a namespace from which objects are left out.
	problem string
	// left is called with the number of left out objects of a namespace when it changes.
	left func(namespace string, count int)
	// wake holds a token if a namespace may fit again.
	wake chan struct{}
}

var _ bound[int] = (*leaveOutLast[int])(nil)

// LeaveOutLast limits the elements of the objects of each namespace. In the order of names, it
// leaves out the first object that exceeds limit, and all after it. least is the size of the
// smallest object. problem is reported for a namespace with left out objects, and left is called
// with their number.
func (f *Feed[T]) LeaveOutLast(limit, least int, problem string,
	left func(namespace string, count int)) {
	f.bound = &leaveOutLast[T]{feed: f, limit: limit, least: least, problem: problem, left: left,
		share: quota.NewShare(limit, least), wake: make(chan struct{}, 1)}
}

// list also leaves out objects that have nothing to pass on.
func (r *leaveOutLast[T]) list() (keeps func(o *object.Object, p Parsed[T]) bool) {
	reading := quota.NewShare(r.limit, r.least)
	r.reading = reading
	return func(o *object.Object, p Parsed[T]) bool {
		if p.Elements == 0 {
			return false
		}
		kept, gone := reading.Put(o.Namespace, o.Name, p.Elements, true)
		for _, name := range gone {
			r.feed.takeBack(o.Namespace + "/" + name)
		}
		return kept
	}
}

// put returns the value of an object that is within the share of its namespace. For others it
// returns no value.
func (r *leaveOutLast[T]) put(o *object.Object, p Parsed[T], isNew bool) Parsed[T] {
	before := r.share.Standing(o.Namespace)
	if p.Elements == 0 {
		r.share.Remove(o.Namespace, o.Name)
	} else {
		kept, gone := r.share.Put(o.Namespace, o.Name, p.Elements, isNew)
		for _, name := range gone {
			r.feed.noteLocked(o.Namespace+"/"+name, "")
			r.feed.deleteLocked(o.Namespace + "/" + name)
		}
		if !kept {
			p = Parsed[T]{}
		}
	}
	r.report(o.Namespace, before)
	return p
}

func (r *leaveOutLast[T]) forget(o *object.Object) {
	before := r.share.Standing(o.Namespace)
	if !r.share.Remove(o.Namespace, o.Name) && r.feed.reduce(o).Elements > 0 {
		r.share.Gone(o.Namespace)
	}
	r.report(o.Namespace, before)
}

// report reports the left out objects of a namespace if they changed. If the namespace needs less
// than before and may fit, it requests a new list.
func (r *leaveOutLast[T]) report(namespace string, before quota.Standing) {
	now := r.share.Standing(namespace)
	if now.Need < before.Need && r.share.MayFit(namespace) {
		api.Poke(r.wake)
	}
	if now.Left == before.Left && now.From == before.From {
		return
	}

	text := ""
	if now.From != "" {
		text = fmt.Sprintf("%s (from %q on by name, %d now)", r.problem, now.From, now.Left)
	}
	r.left(namespace, now.Left)
	r.feed.Server.Note(r.feed.What+"s of namespace "+namespace, text)
}

// replace replaces the counts by those of the list that was read. done reports the difference.
func (r *leaveOutLast[T]) replace() (done func(seen map[string]bool)) {
	before := r.share
	if r.reading != nil {
		r.share, r.reading = r.reading, nil
	}
	return func(seen map[string]bool) {
		for _, namespace := range slices.Concat(before.Namespaces(), r.share.Namespaces()) {
			was := before.Standing(namespace)
			was.Need = 0 // so that report does not request another list
			r.report(namespace, was)
		}
		// Objects may have been deleted while the list was streamed.
		r.share.Retain(func(namespace, name string) bool {
			return seen[namespace+"/"+name]
		})
	}
}

// restore makes the reflector list all objects again when a namespace may fit its share again.
func (r *leaveOutLast[T]) restore(ctx context.Context, _ object.Kind, all *reflector.Reflector) {
	listAgain(ctx, r.feed.Server.Times.Fit, r.wake, all, r.mayFit)
}

// listAgain makes the reflector list all objects again after a token of wake, if mayFit then
// returns true. It waits 1 to 1.5 pauses before that, and doubles the pause while that repeats.
// least is the shortest pause.
func listAgain(ctx context.Context, least time.Duration, wake <-chan struct{},
	all *reflector.Reflector, mayFit func() bool) {
	pause, last := least, time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-wake:
		}
		if time.Since(last) > 2*maxFitPause*least {
			pause = least
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause + rand.N(pause/2)):
		}

		if mayFit() {
			all.ReadAgain()
			pause, last = min(2*pause, maxFitPause*least), time.Now()
		}
	}
}

// mayFit reports whether any namespace may fit its share again.
func (r *leaveOutLast[T]) mayFit() bool {
	r.feed.mu.Lock()
	defer r.feed.mu.Unlock()
	return slices.ContainsFunc(r.share.Namespaces(), r.share.MayFit)
}
