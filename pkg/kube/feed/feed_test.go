package feed

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/kube/api"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
)

// quiet returns a server that only keeps problems.
func quiet() *api.Server { return &api.Server{Log: slog.New(slog.DiscardHandler)} }

func named(namespace, name string) *object.Object {
	return &object.Object{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

// A list that lacks a malformed object clears its problem: the object was deleted while no watch
// ran. The object was never passed on.
func TestListClearsTheProblemsOfWhatItLacks(t *testing.T) {
	s := quiet()
	pass := func(string) { t.Error("an object was passed on") }
	f := &Feed[string]{Server: s, What: "Thing", Put: pass, Drop: pass,
		Parse: func(*object.Object) Parsed[string] { return Parsed[string]{Problem: "malformed"} }}
	for _, step := range []struct {
		list []any
		want int
	}{
		{[]any{named("", "a"), named("", "b")}, 2},
		{[]any{named("", "b")}, 1},
		{nil, 0},
	} {
		errtest.Must(t, f.Replace(step.list, "1"))
		if got := s.Problems(); len(got) != step.want {
			t.Errorf("after a list of %d: problems %q, want %d", len(step.list), got, step.want)
		}
	}
}

// shrinking returns a feed of numbers. The sum of the numbers of a namespace may be at most limit.
// A number that does not fit is replaced by 0.
func shrinking(limit int, parse func(*object.Object) int) *Feed[int] {
	f := &Feed[int]{Server: quiet(), What: "Thing", Parse: func(o *object.Object) Parsed[int] {
		n := parse(o)
		return Parsed[int]{Value: &n, Elements: n}
	}}
	f.ShrinkLargest(limit, "too large", func(int) int { return 0 },
		func(n int) bool { return n == 0 })
	return f
}

// A namespace with many objects that must be read again does not delay other namespaces.
func TestNamespacesTakeTurnsToBeReadAgain(t *testing.T) {
	f := shrinking(1, func(*object.Object) int { return 1 })
	f.passed = map[string]int{}
	b := f.bound.(*shrinkLargest[int])
	for i := range 100 {
		name := fmt.Sprint("p", i)
		f.passed["evil/"+name] = 0
		b.want("evil", name)
	}
	for _, namespace := range []string{"a", "shop"} {
		f.passed[namespace+"/one"] = 0
		b.want(namespace, "one")
	}
	var got []string
	for range 5 {
		namespace, _ := b.next()
		got = append(got, namespace)
	}
	if !slices.Equal(got, []string{"a", "evil", "shop", "evil", "evil"}) {
		t.Errorf("read again in the order %v", got)
	}
}

// A list is bounded by what it has itself: not by what earlier lists had.
func TestEachListIsCountedAnew(t *testing.T) {
	f := shrinking(100, func(*object.Object) int { return 10 })
	for round := range 2 {
		keeps, all := f.BeginList(), []*object.Object{}
		for i := range 12 {
			all = append(all, named("evil", fmt.Sprint(round, "-", i)))
			if !keeps(all[i]) {
				t.Errorf("list %d lacks an object", round)
			}
		}
		shrunk := 0
		for _, o := range all {
			if *f.reduce(o).Value == 0 {
				shrunk++
			}
		}
		if shrunk != 2 {
			t.Errorf("list %d: %d of 12 were shrunk while it was read, want 2", round, shrunk)
		}
	}
}
