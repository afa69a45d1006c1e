package kube

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/kubeveil/kubeveil/pkg/kube/wire"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/service"
)

// relist passes a list to a feed as the reflector does.
func relist(t *testing.T, f *feed[service.Service], objects ...*object) {
	t.Helper()
	transform := f.leavingOut()
	var list []any
	for _, o := range objects {
		v, err := transform(o)
		if err != nil {
			t.Fatal(err)
		}
		if v != nil {
			list = append(list, v)
		}
	}
	if err := f.Replace(list, "1"); err != nil {
		t.Fatal(err)
	}
}

// What was left out and deleted while no watch ran takes nobody's room after the next list, and a
// malformed object has no problem any more.
func TestListForgetsWhatItLacks(t *testing.T) {
	f, passed := countingFeed(smallRoom)
	var all []*object
	for i := range 2000 { // 1,024 fit
		all = append(all, plainService("evil", i))
	}
	malformed := plainService("bad", 1)
	malformed.content.(*wire.Service).Ports[0].Port = 70000
	relist(t, f, append(all, malformed)...)
	if passed["evil"] != 1024 || len(f.client.Problems()) != 2 ||
		!slices.Equal(f.client.LeftOut(), []service.LeftOut{
			{Kind: "Service", Namespace: "evil", Count: 976}}) {
		t.Fatalf("passed on %v, left out %v, problems %q", passed, f.client.LeftOut(),
			f.client.Problems())
	}

	// One of the objects of this list was deleted before the list had ended.
	transform := f.leavingOut()
	for _, o := range []*object{plainService("evil", 1), plainService("evil", 2)} {
		if v, err := transform(o); v == nil || err != nil {
			t.Fatal(v, err)
		}
	}
	if err := f.Replace([]any{plainService("evil", 1)}, "2"); err != nil {
		t.Fatal(err)
	}
	if passed["evil"] != 1 || len(f.client.Problems()) > 0 || len(f.client.LeftOut()) > 0 ||
		len(f.room.spaces) != 1 || f.room.standing("evil").need != leastFrontends {
		t.Errorf("passed on %v, left out %v, problems %q, %+v", passed, f.client.LeftOut(),
			f.client.Problems(), f.room.standing("evil"))
	}
}

// A list that lacks a malformed object clears its problem: the object was deleted while no watch
// ran. The object was never passed on.
func TestListClearsTheProblemsOfWhatItLacks(t *testing.T) {
	c := &Client{problems: map[string]string{}, log: slog.New(slog.DiscardHandler)}
	drop := func(policy.Namespace) { t.Error("an object was passed on") }
	f := newFeed(c, "Namespace ", parseNamespace, func(n policy.Namespace) any { return n.Name },
		drop, drop, func() {})
	malformed := func(name string) *object {
		return &object{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	for _, step := range []struct {
		list []any
		want int
	}{
		{[]any{malformed("a"), malformed("b")}, 2},
		{[]any{malformed("b")}, 1},
		{nil, 0},
	} {
		if err := f.Replace(step.list, "1"); err != nil {
			t.Fatal(err)
		}
		if got := c.Problems(); len(got) != step.want {
			t.Errorf("after a list of %d: problems %q, want %d", len(step.list), got, step.want)
		}
	}
}

// A list holds only what is kept while it is read, over all its pages. Objects with nothing to pass
// on are not held either.
func TestListHoldsOnlyWhatIsKept(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page := r.URL.Query().Get("continue")
		var items []any
		for i := range 1000 {
			o := serviceObject(fmt.Sprintf("s%s-%04d", page, i), 80)
			headless := serviceObject(fmt.Sprintf("headless%s-%04d", page, i), 80)
			headless["spec"].(map[string]any)["clusterIP"] = "None"
			items = append(items, o, headless)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "ServiceList", "apiVersion": "v1",
			"metadata": map[string]any{"resourceVersion": "1"}, "items": items})
	}))
	t.Cleanup(s.Close)

	c, err := newClient(Options{Node: "node-1"}, &rest.Config{Host: s.URL})
	if err != nil {
		t.Fatal(err)
	}

	f, _ := countingFeed(smallRoom)
	list := c.lister(serviceKind, f)
	for page, want := range []int{1000, 24, 0} {
		o := metav1.ListOptions{}
		if page > 0 {
			o.Continue = fmt.Sprint(page)
		}
		l, err := list(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(l.(*wiredList[serviceWire]).Items); got != want {
			t.Errorf("page %d: %d items, want %d", page, got, want)
		}
	}
}

// A streaming list is read likewise. What comes after it is passed on whole, and a stream that is
// stopped ends.
func TestStreamHoldsOnlyWhatIsKept(t *testing.T) {
	f, _ := countingFeed(smallRoom)
	server := watch.NewFake()
	w := leaveOut(server, f.leavingOut())
	go func() {
		for i := range 1030 {
			server.Add(plainService("evil", i))
		}
		server.Action(watch.Bookmark, &object{ObjectMeta: metav1.ObjectMeta{
			Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}})
		for i := range 10 {
			server.Add(plainService("evil", i))
		}
	}()

	added := 0
	for e := range w.ResultChan() {
		if e.Type == watch.Bookmark {
			break
		}
		added++
	}
	if added != 1024 {
		t.Errorf("%d objects of the list, want 1,024 that fit", added)
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

// plainShare returns the names that fit by name, and the first that does not.
func plainShare(limit int, objects map[string]int) (kept []string, from string) {
	sum := 0
	for _, name := range slices.Sorted(maps.Keys(objects)) {
		if sum += objects[name]; sum > limit {
			return kept, name
		}
		kept = append(kept, name)
	}
	return kept, ""
}

// Which objects of a list are kept follows from the objects alone. Later changes never exceed the
// limit, and keep nothing from the first name on that is left out.
func TestShareKeepsTheFirstByName(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 200 {
		objects := map[string]int{}
		for i := range 40 {
			objects[fmt.Sprintf("o%02d", i)] = 1 + r.IntN(12)
		}
		s := newQuota(60, 1)
		for name, elements := range objects {
			s.put("shop", name, elements, true)
		}
		p := s.spaces["shop"]
		kept, from := plainShare(60, objects)
		if got := slices.Sorted(maps.Keys(p.objects)); !slices.Equal(got, kept) || p.from != from ||
			p.left != len(objects)-len(kept) {
			t.Fatalf("kept %v from %q, %d left; want %v from %q", got, p.from, p.left, kept, from)
		}

		for range 100 {
			name := fmt.Sprintf("o%02d", r.IntN(40))
			if r.IntN(2) > 0 {
				s.put("shop", name, 1+r.IntN(12), false)
			} else {
				s.remove("shop", name)
			}
			sum := 0
			for name, c := range p.objects {
				sum += c.elements
				if name >= p.from {
					t.Fatalf("%s is kept, and what is from %s on is left out", name, p.from)
				}
			}
			if sum != p.sum || sum > 60 || len(p.last.all) != len(p.objects) {
				t.Fatalf("%d elements, counted %d", sum, p.sum)
			}
		}
	}
}

// An object that exceeds the share of its namespace alone is left out, and no other for it.
func TestServiceBeyondItsShareIsLeftOutAlone(t *testing.T) {
	f, passed := countingFeed(smallRoom)
	large := plainService("shop", 0)
	w := large.content.(*wire.Service)
	for i := range 100 {
		w.ExternalIPs = append(w.ExternalIPs, fmt.Sprint("198.18.200.", i))
		w.Ports = append(w.Ports, wire.ServicePort{Protocol: "TCP", Port: int32(i + 1)})
	}
	relist(t, f, large, plainService("shop", 1), plainService("shop", 2))
	if got := f.client.Problems(); passed["shop"] != 2 || len(got) != 1 ||
		!strings.Contains(got[0], "Service shop/s000000: it asks for") {
		t.Errorf("passed on %v, problems %q", passed, got)
	}
}
