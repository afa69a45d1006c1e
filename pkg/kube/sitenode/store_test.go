package sitenode

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
)

// siteNode returns the SiteNode called name, which is hours old at noon.
func siteNode(name string, hours int) *object.Object {
	return &object.Object{ObjectMeta: metav1.ObjectMeta{Name: name,
		CreationTimestamp: metav1.NewTime(time.Date(2026, 1, 1, 12-hours, 0, 0, 0, time.UTC))},
		Spec: json.RawMessage(`{` + keys + `,"addresses":["198.18.1.11"]}`)}
}

// list makes objects the content of s, as a reflector does.
func list(t *testing.T, s *Store, objects ...*object.Object) {
	t.Helper()
	keep := s.BeginList()
	var kept []any
	for _, o := range objects {
		if keep(o) {
			kept = append(kept, o)
		}
	}
	errtest.Must(t, s.Replace(kept, "1"))
}

// read returns the names of the nodes of s and its problems.
func read(s *Store) (names []string, problems string) {
	var l List
	found := map[string]string{}
	s.news = true
	s.Read(&l, found)
	for _, n := range l.nodes {
		names = append(names, n.Name)
	}
	for what, text := range found {
		problems += what + ": " + text + "\n"
	}
	return names, problems
}

func TestOnlyOpenSitesAreKept(t *testing.T) {
	changes := 0
	s := NewStore([]string{"b"}, func() { changes++ })
	broken := siteNode("b.broken", 1)
	broken.Spec = json.RawMessage(`{"addresses":["198.18.1.11"]}`)
	objects := []*object.Object{siteNode("b.node-1", 1), siteNode("b.a.b", 1), siteNode("c.node-1", 1),
		siteNode("b", 1), siteNode("bb.node-1", 1), broken}
	list(t, s, objects...)
	errtest.Must(t, s.Add(siteNode("c.node-2", 1)))
	errtest.Must(t, s.Add(siteNode("b.node-2", 1)))
	names, problems := read(s)
	if !slices.Equal(names, []string{"b/a.b", "b/node-1", "b/node-2"}) || changes != 3 {
		t.Errorf("nodes %q, %d changes", names, changes)
	}
	for _, want := range []string{"SiteNode b.broken: spec.keys: 0 keys",
		"SiteNodes: 4 belong to sites that are not open"} {
		if !strings.Contains(problems, want) {
			t.Errorf("problems %q, want %q", problems, want)
		}
	}

	errtest.Must(t, s.Delete(siteNode("c.node-2", 1)))
	errtest.Must(t, s.Delete(siteNode("b.node-1", 1)))
	errtest.Must(t, s.Update(siteNode("b.broken", 1)))
	names, problems = read(s)
	if !slices.Equal(names, []string{"b/a.b", "b/broken", "b/node-2"}) ||
		!strings.Contains(problems, "SiteNodes: 3 belong") || strings.Contains(problems, "broken") {
		t.Errorf("nodes %q, problems %q", names, problems)
	}
}

// Beyond the bound the newest are left out, regardless of their order. A deletion lists all again.
func TestNewestNodesOfASiteAreLeftOut(t *testing.T) {
	s := NewStore([]string{"b", "c"}, func() {})
	again := 0
	s.Again = func() { again++ }
	var objects []*object.Object
	var want []string
	for i := range MaxNodes + 5 {
		age := 9
		if i%201 == 0 {
			age = 1 // five of all
		}
		objects = append(objects, siteNode(fmt.Sprintf("b.node-%04d", i), age))
		if age == 9 {
			want = append(want, fmt.Sprintf("b/node-%04d", i))
		}
	}
	want = append(want, "c/node-1")
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(objects), func(i, j int) {
		objects[i], objects[j] = objects[j], objects[i]
	})
	list(t, s, append(objects, siteNode("c.node-1", 1))...)
	if names, problems := read(s); !slices.Equal(names, want) ||
		!strings.Contains(problems, "SiteNodes of b: 5 are left out") {
		t.Errorf("%d nodes, problems %q", len(names), problems)
	}

	errtest.Must(t, s.Add(siteNode("b.newer", 0)))
	errtest.Must(t, s.Add(siteNode("b.older", 10)))
	names, problems := read(s)
	if slices.Contains(names, "b/newer") || !slices.Contains(names, "b/older") ||
		len(names) != MaxNodes+1 || !strings.Contains(problems, "b: 7 are left out") {
		t.Errorf("%d nodes, problems %q", len(names), problems)
	}
	errtest.Must(t, s.Delete(siteNode("b.newer", 0)))
	if again != 0 {
		t.Error("a left out node is deleted: all are listed again")
	}
	errtest.Must(t, s.Delete(siteNode("b.older", 10)))
	if _, problems := read(s); again != 1 || !strings.Contains(problems, "b: 6 are left out") {
		t.Errorf("listed again %d times, problems %q", again, problems)
	}
}

// Nodes are unlisted until the first list, and join a State only if it is synced.
func TestNodesJoinASyncedState(t *testing.T) {
	s := NewStore([]string{"b"}, func() {})
	var l List
	if s.Read(&l, map[string]string{}); !l.Unlisted() {
		t.Error("listed before the first list")
	}
	list(t, s, siteNode("b.node-1", 1))
	if !s.Read(&l, map[string]string{}) || l.Unlisted() || s.Read(&l, map[string]string{}) {
		t.Error("the first list is not a change, or the second reading is")
	}
	local := []cluster.Node{{Name: "a"}, {Name: "c"}}
	with := l.With(cluster.State{Synced: true, Nodes: local})
	if len(with.Nodes) != 3 || with.Nodes[1].Name != "b/node-1" || len(local) != 2 {
		t.Errorf("nodes %+v", with.Nodes)
	}
	if n := len(l.With(cluster.State{Nodes: local}).Nodes); n != 2 {
		t.Errorf("%d nodes before the state is synced", n)
	}

	var none *Store
	var nothing List
	if none.Read(&nothing, nil) || nothing.Unlisted() {
		t.Error("no store has content")
	}
}
