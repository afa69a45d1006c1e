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

// maxFitPause is how many times the first pause before a list of what was left out the last one is.
const maxFitPause = 16

// leaveOutLast leaves out of a feed what exceeds the share of a namespace. What is left out is
// forgotten:
//
//	list or stream ─► reading ─► first by name ─► share ─► feed
//	change ─────────────────────────────────────►   │
//	                                                └─► a namespace may fit: all is listed
type leaveOutLast[T any] struct {
	feed         *Feed[T]
	limit, least int
	share        *quota.Share
	// reading counts the objects of the list that is read at present; nil if there is none.
	reading *quota.Share
	// problem is reported for a namespace from which objects are left out.
	problem string
	// left receives how many objects of a namespace are left out, when that changes.
	left func(namespace string, count int)
	// wake holds a token when a namespace may fit again.
	wake chan struct{}
}

var _ bound[int] = (*leaveOutLast[int])(nil)

// LeaveOutLast bounds the elements of the objects of each namespace: what is left out are the last
// by name, from the first on that exceeds limit. least is the size of the smallest object, problem
// is what is reported for such a namespace, and left receives how many of its objects are left out.
func (f *Feed[T]) LeaveOutLast(limit, least int, problem string,
	left func(namespace string, count int)) {
	f.bound = &leaveOutLast[T]{feed: f, limit: limit, least: least, problem: problem, left: left,
		share: quota.NewShare(limit, least), wake: make(chan struct{}, 1)}
}

// list leaves out an object with nothing to pass on, too.
func (r *leaveOutLast[T]) list() (keeps func(o *object.Object, p Parsed[T]) bool) {
	reading := quota.NewShare(r.limit, r.least)
	r.reading = reading
	return func(o *object.Object, p Parsed[T]) bool {
		if p.Elements == 0 {
			return false
		}
		kept, _ := reading.Put(o.Namespace, o.Name, p.Elements, true)
		return kept
	}
}

// put returns an object's value within the share of its namespace, or nothing.
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

// report reports what is left out of a namespace, unless that is as before. It has all listed again
// if the namespace needs less and may fit.
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

// replace replaces what is counted by what the list has. done reports the difference.
func (r *leaveOutLast[T]) replace() (done func(seen map[string]bool)) {
	before := r.share
	if r.reading != nil {
		r.share, r.reading = r.reading, nil
	}
	return func(seen map[string]bool) {
		for _, namespace := range slices.Concat(before.Namespaces(), r.share.Namespaces()) {
			was := before.Standing(namespace)
			was.Need = 0 // a list has just been read
			r.report(namespace, was)
		}
		r.share.Retain(func(namespace, name string) bool { // deleted while the list was streamed
			return seen[namespace+"/"+name]
		})
	}
}

// restore has all listed again when a namespace may fit in its share again: after 1 to 1.5 pauses,
// and after longer ones while that repeats.
func (r *leaveOutLast[T]) restore(ctx context.Context, _ object.Kind, all *reflector.Reflector) {
	least := r.feed.Server.Times.Fit
	pause, last := least, time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		}
		if time.Since(last) > 2*maxFitPause*least {
			pause = least
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause + rand.N(pause/2)):
		}

		if r.mayFit() {
			all.ReadAgain()
			pause, last = min(2*pause, maxFitPause*least), time.Now()
		}
	}
}

// mayFit reports whether a namespace may fit in its share again.
func (r *leaveOutLast[T]) mayFit() bool {
	r.feed.mu.Lock()
	defer r.feed.mu.Unlock()
	return slices.ContainsFunc(r.share.Namespaces(), r.share.MayFit)
}
