package api

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubeveil/kubeveil/pkg/kube/object"
)

func named(name string) *object.Object {
	return &object.Object{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// A streaming list holds only what is kept. What comes after it is passed on whole, and a stream
// that is stopped ends.
func TestStreamHoldsOnlyWhatIsKept(t *testing.T) {
	server := watch.NewFake()
	w := readStream(server, func(o *object.Object) bool { return o.Name < "s0020" })
	go func() {
		for i := range 30 {
			server.Add(named(fmt.Sprintf("s%04d", i)))
		}
		end := named("")
		end.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
		server.Action(watch.Bookmark, end)
		for i := range 10 {
			server.Add(named(fmt.Sprintf("s%04d", 90+i)))
		}
	}()

	added := 0
	for e := range w.ResultChan() {
		if e.Type == watch.Bookmark {
			break
		}
		added++
	}
	if added != 20 {
		t.Errorf("%d objects of the list, want 20", added)
	}
	for range 10 {
		if e, ok := <-w.ResultChan(); !ok || e.Type != watch.Added {
			t.Fatalf("after the list: %v, %t", e, ok)
		}
	}
	w.Stop()
	if e, ok := <-w.ResultChan(); ok {
		t.Errorf("%v after it was stopped", e)
	}
}
