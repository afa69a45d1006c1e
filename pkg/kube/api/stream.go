package api

import (
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubeveil/kubeveil/pkg/kube/object"
)

// ListReader is a store that reduces the objects of a list while the list is read, and may leave
// some out.
type ListReader interface {
	// BeginList returns a function for the objects of one list. The function reduces an object, and
	// reports whether the list keeps it.
	BeginList() func(*object.Object) bool
}

// listStream is a watch that streams a list first. It reduces the objects of the list, and leaves
// out those that the list does not keep.
type listStream struct {
	watch.Interface
	events  chan watch.Event
	stopped chan struct{}
	once    sync.Once
}

// readStream returns w without the objects of its initial list for which reduce returns false.
func readStream(w watch.Interface, reduce func(*object.Object) bool) watch.Interface {
	s := &listStream{Interface: w, events: make(chan watch.Event), stopped: make(chan struct{})}
	go s.run(reduce)
	return s
}

// ResultChan returns the events.
func (s *listStream) ResultChan() <-chan watch.Event { return s.events }

// Stop ends the watch. Further calls do nothing.
func (s *listStream) Stop() {
	s.once.Do(func() {
		close(s.stopped)
		s.Interface.Stop()
	})
}

func (s *listStream) run(reduce func(*object.Object) bool) {
	defer close(s.events)
	listed := false
	for e := range s.Interface.ResultChan() {
		o, ok := object.Held(e.Object)
		switch {
		case !ok || listed:
		case e.Type == watch.Bookmark:
			listed = o.Annotations[metav1.InitialEventsAnnotationKey] == "true"
		case e.Type == watch.Added:
			if !reduce(o) {
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
