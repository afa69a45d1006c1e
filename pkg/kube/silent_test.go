package kube

import (
	"fmt"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/pkg/cluster"
)

// setDeaf makes changes invisible to watches, or visible again.
func (f *fakeServer) setDeaf(deaf bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.deaf = deaf
}

func TestVeilNodeOfASilentPeerIsRead(t *testing.T) {
	hasKey := func(name string, want byte) func(s cluster.State) bool {
		return func(s cluster.State) bool {
			n := find(s, name)
			return n != nil && n.Claim != nil && n.Claim.Keys[0].Public == key(want)
		}
	}
	f := newFakeServer(t)
	for i := range 3 {
		f.put(nodesPath, node(fmt.Sprintf("node-%d", i+1), i+1))
	}
	f.put(veilNodesPath, veilNode("node-2", 2))
	f.put(veilNodesPath, veilNode("node-3", 3))
	r := start(t, f, "node-1")
	r.until("the key is known", hasKey("node-2", 2))

	f.setDeaf(true)
	f.put(veilNodesPath, veilNode("node-2", 12))
	r.SetSilent([]string{"node-2"})
	r.until("the new key", hasKey("node-2", 12))

	// An older object, as after a restore that no watch noticed, makes the client read all again.
	before := f.count("GET " + veilNodesPath)
	older := f.put(veilNodesPath, veilNode("node-3", 13))
	f.mu.Lock()
	older["metadata"].(m)["resourceVersion"] = "1"
	f.mu.Unlock()
	r.SetSilent([]string{"node-3"})
	r.until("the older key", hasKey("node-3", 13))
	if asked := f.count("GET "+veilNodesPath) - before; asked < 2 {
		t.Errorf("%d requests, want one for the VeilNode and one for all", asked)
	}
}

func TestSilentPeersAreAskedForSeldom(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	began := now
	nodes := make([]silence, 100)
	for i := range nodes {
		nodes[i] = silence{self: fmt.Sprintf("node-%d", i), spread: 30 * time.Second,
			asks: map[string]ask{}}
	}

	var most, first int
	asked := make([]int, len(nodes))
	for ; now.Before(began.Add(time.Hour)); now = now.Add(time.Second) {
		atOnce := 0
		for i := range nodes {
			if peer, ok := nodes[i].next(now, []string{"dead"}); ok {
				if peer != "dead" {
					t.Fatalf("asked for %q", peer)
				}
				atOnce++
				asked[i]++
			}
		}
		most = max(most, atOnce)
		if now.Sub(began) <= 31*time.Second {
			first += atOnce
		}
	}
	if first != len(nodes) || most > 15 {
		t.Errorf("%d of %d nodes asked in the first 30 s, at most %d in a second", first, len(nodes),
			most)
	}
	for i, n := range asked {
		if n < 6 || n > 8 { // after 0, 1, 3, 7, 15, 31, 47 minutes
			t.Errorf("node %d asked %d times in an hour", i, n)
		}
	}
}

// Of many silent peers the one that waits longest is next; one that answers is forgotten.
func TestSilentPeersTakeTurns(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s := silence{self: "node-1", spread: time.Second, asks: map[string]ask{}}
	silent := []string{"a", "b", "c"}
	if peer, ok := s.next(now, silent); ok && s.asks[peer].due.Before(now) {
		t.Errorf("asked for %q, which is not due", peer)
	}
	seen := map[string]bool{}
	for range 3 {
		now = now.Add(time.Second)
		if peer, ok := s.next(now, silent); ok {
			seen[peer] = true
		}
	}
	if len(seen) != 3 {
		t.Errorf("asked for %v of %v", seen, silent)
	}
	s.next(now, []string{"b"})
	if len(s.asks) != 1 {
		t.Errorf("%d peers are remembered, one is silent", len(s.asks))
	}
}

// A peer that answers is forgotten: when it is silent again, it is asked for as if for the first
// time.
func TestPeersThatAnswerAreForgotten(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s := silence{self: "node-1", asks: map[string]ask{}}
	if peer, ok := s.next(now, []string{"a", "b"}); !ok || peer != "a" {
		t.Fatalf("first peer %q, %t", peer, ok)
	}
	s.next(now, []string{"b", "c"})
	if _, has := s.asks["a"]; has || len(s.asks) != 2 {
		t.Errorf("schedules %v, want b and c", s.asks)
	}
}
