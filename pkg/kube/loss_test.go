package kube

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/kube/api"
)

// namesOf returns the names of the nodes of a state.
func namesOf(s cluster.State) string {
	var names []string
	for _, n := range s.Nodes {
		names = append(names, n.Name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// restored returns a client that knew five nodes, and whose server has only these.
func restored(t *testing.T, confirm time.Duration, names ...string) (*fakeServer, *running) {
	t.Helper()
	f := newFakeServer(t)
	for i, name := range names {
		f.put(nodesPath, node(name, i+1))
	}
	return f, start(t, f, "a", func(c *Client) {
		c.times.confirm = confirm
		var peers []cluster.Node
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			peers = append(peers, cluster.Node{Name: name})
		}
		c.Recall(cluster.Table{Peers: peers[:3], Keyless: peers[3:]})
	})
}

func inDoubt(r *running) bool {
	return slices.ContainsFunc(r.Problems(), func(p string) bool {
		return strings.Contains(p, "suddenly lists 2 Nodes, 3 fewer")
	})
}

func TestMostNodesAreDroppedAfterASecondList(t *testing.T) {
	f, r := restored(t, 50*time.Millisecond, "a", "b")
	r.until("three of five are gone", func(s cluster.State) bool {
		return s.Synced && namesOf(s) == "a b"
	})
	r.mu.Lock()
	first := namesOf(r.states[0])
	r.mu.Unlock()
	if first != "a b c d e" {
		t.Errorf("the first state has %s: most nodes were dropped by one list", first)
	}
	if n := f.count("GET " + nodesPath); n == 0 {
		t.Error("there was no second list")
	}
	eventually(t, "the problem is over", func() bool { return !inDoubt(r) })
}

func TestNodesThatComeBackWereNeverDropped(t *testing.T) {
	f, r := restored(t, time.Hour, "a", "b")
	eventually(t, "the doubt is shown", func() bool { return inDoubt(r) })
	f.put(nodesPath, node("c", 3))
	eventually(t, "the doubt is about the two others", func() bool {
		return slices.ContainsFunc(r.Problems(), func(p string) bool {
			return strings.Contains(p, "suddenly lists 3 Nodes, 2 fewer")
		})
	})
	for i, name := range []string{"d", "e"} {
		f.put(nodesPath, node(name, i+4))
	}
	eventually(t, "the doubt is over", func() bool { return len(r.Problems()) == 0 })
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.states {
		if namesOf(s) != "a b c d e" {
			t.Errorf("revision %d has %s", s.Revision, namesOf(s))
		}
	}
}

func TestHalfTheNodesAreDroppedAtOnce(t *testing.T) {
	_, r := restored(t, time.Hour, "a", "b", "c")
	if s := r.until("the first state", synced); namesOf(s) != "a b c" {
		t.Errorf("it has %s", namesOf(s))
	}
}

// BenchmarkNoNodeOfAThousandLost measures the cost of the comparison for each state of a thousand
// nodes.
func BenchmarkNoNodeOfAThousandLost(b *testing.B) {
	c := &Client{server: &api.Server{Log: slog.New(slog.DiscardHandler)}}
	var s cluster.State
	for i := range 1000 {
		s.Nodes = append(s.Nodes, cluster.Node{Name: fmt.Sprintf("node-%04d", i)})
	}
	for b.Loop() {
		if got := c.keepSuddenlyLost(s.Nodes, s); len(got.Nodes) != len(s.Nodes) {
			b.Fatalf("%d nodes", len(got.Nodes))
		}
	}
}
