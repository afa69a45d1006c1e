package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/kube/veilnode"
	"k8s.io/apimachinery/pkg/types"
)

func TestPublishCreatesAnOwnedVeilNode(t *testing.T) {
	f := newFakeServer(t)
	n := f.put(nodesPath, node("a", 1))
	r := start(t, f, "a")
	errtest.Must(t, r.Publish(claim(1)))
	s := r.until("the claim comes back", func(s cluster.State) bool {
		return s.Synced && find(s, "a").Claim != nil
	})
	want := claim(1)
	if got := find(s, "a").Claim; !veilnode.Same(got, &want) {
		t.Errorf("claim %+v, want %+v", got, want)
	}
	owners := f.object(veilNodesPath, "a")["metadata"].(m)["ownerReferences"].([]any)
	if len(owners) != 1 || owners[0].(m)["uid"] != n["metadata"].(m)["uid"] ||
		owners[0].(m)["kind"] != "Node" {
		t.Errorf("owner references %v, want the Node %v", owners, n["metadata"].(m)["uid"])
	}
}

func TestPublishTwiceWritesOnce(t *testing.T) {
	f := newFakeServer(t)
	f.put(nodesPath, node("a", 1))
	r := start(t, f, "a")
	for range 20 {
		errtest.Must(t, r.Publish(claim(1)))
	}
	r.until("the claim comes back", func(s cluster.State) bool {
		return s.Synced && find(s, "a").Claim != nil
	})
	errtest.Must(t, r.Publish(claim(1)))
	f.put(nodesPath, node("b", 2))
	r.until("another change was seen", func(s cluster.State) bool { return len(s.Nodes) == 2 })
	if p, u := f.count("POST "+veilNodesPath), f.count("PUT "+veilNodesPath); p != 1 || u != 0 {
		t.Errorf("%d creations and %d updates, want one and none", p, u)
	}
}

// If the VeilNode schema of the cluster is older than veild, the API server drops the features. The
// rest is published once.
func TestPublishFeatures(t *testing.T) {
	for name, pruned := range map[string][]string{"schema of this version": nil,
		"older schema": {"features"}} {
		t.Run(name, func(t *testing.T) {
			f := newFakeServer(t)
			f.pruned = pruned
			f.put(nodesPath, node("a", 1))
			r := start(t, f, "a")
			want := claim(1)
			want.Features = cluster.Features()
			errtest.Must(t, r.Publish(want))

			s := r.until("the claim comes back", func(s cluster.State) bool {
				return s.Synced && find(s, "a").Claim != nil
			})
			if got := find(s, "a").Claim; got.Has(cluster.UnknownFields) != (pruned == nil) ||
				!veilnode.SameButFeatures(got, &want) {
				t.Errorf("claim %+v", got)
			}

			f.put(nodesPath, node("b", 2))
			r.until("another change was seen",
				func(s cluster.State) bool { return len(s.Nodes) == 2 })
			if p, u := f.count("POST "+veilNodesPath), f.count("PUT "+veilNodesPath); p != 1 ||
				u != 0 {
				t.Errorf("%d creations and %d updates, want one and none", p, u)
			}
		})
	}
}

func TestPublishIsRestoredAfter(t *testing.T) {
	for name, harm := range map[string]func(f *fakeServer){
		"deletion":  func(f *fakeServer) { f.remove(veilNodesPath, "a") },
		"forgery":   func(f *fakeServer) { f.put(veilNodesPath, veilNode("a", 66)) },
		"new claim": func(*fakeServer) {},
		"node made again": func(f *fakeServer) {
			f.remove(nodesPath, "a")
			f.put(nodesPath, node("a", 1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeServer(t)
			f.put(nodesPath, node("a", 1))
			r := start(t, f, "a", func(c *Client) { c.times.orphanGrace = time.Hour })
			errtest.Must(t, r.Publish(claim(1)))

			r.until("published", func(s cluster.State) bool {
				return s.Synced && find(s, "a").Claim != nil
			})
			harm(f)
			errtest.Must(t, r.Publish(claim(2)))

			r.until("the new claim is in place", func(s cluster.State) bool {
				n := find(s, "a")
				return n != nil && n.Claim != nil && n.Claim.Keys[0].Public == key(2)
			})
			eventually(t, "the owner is the present Node", func() bool {
				owners, _ := f.object(veilNodesPath, "a")["metadata"].(m)["ownerReferences"].([]any)
				return len(owners) == 1 && owners[0].(m)["uid"] == f.object(nodesPath,
					"a")["metadata"].(m)["uid"]
			})
		})
	}
}

func TestPublishTriesAgain(t *testing.T) {
	for what, code := range map[string]int{"POST": 403, "GET": 500} {
		t.Run(what, func(t *testing.T) {
			f := newFakeServer(t)
			f.put(nodesPath, node("a", 1))
			f.setRefuse(what+" "+veilNodesPath, code)
			r := start(t, f, "a")
			errtest.Must(t, r.Publish(claim(1)))
			eventually(t, "the problem is shown", func() bool {
				return strings.Contains(fmt.Sprint(r.Problems()), "publish VeilNode a")
			})
			f.setRefuse(what+" "+veilNodesPath, 0)
			eventually(t, "it is written", func() bool {
				return f.object(veilNodesPath, "a") != nil
			})
			eventually(t, "the problem is gone", func() bool { return len(r.Problems()) == 0 })
		})
	}
}

func TestPublishTriesAgainWhileVeilNodesCannotBeListed(t *testing.T) {
	f := newFakeServer(t)
	f.put(nodesPath, node("a", 1))
	f.setRefuse("GET "+veilNodesPath, 404) // the resource is not installed
	f.setRefuse("POST "+veilNodesPath, 404)
	r := start(t, f, "a")
	errtest.Must(t, r.Publish(claim(1)))
	eventually(t, "it was tried several times",
		func() bool { return f.count("POST "+veilNodesPath) > 3 })
	if strings.Contains(r.log.String(), "recovered") {
		t.Errorf("logged that it recovered:\n%s", r.log)
	}
	f.setRefuse("POST "+veilNodesPath, 0)
	eventually(t, "it is written", func() bool { return f.object(veilNodesPath, "a") != nil })
}

func TestPublishRefusesAClaimThatNoVeilNodeCanHold(t *testing.T) {
	f := newFakeServer(t)
	c, err := newClient(ClientConfig{Node: "a"}, f.config())
	errtest.Must(t, err)
	if err := c.Publish(cluster.Claim{}); err == nil ||
		!strings.Contains(err.Error(), "spec.keys") {
		t.Errorf("a claim without keys: %v", err)
	}
}

func TestRemoveDeletesTheVeilNodeAndKeepsItDeleted(t *testing.T) {
	f := newFakeServer(t)
	f.put(nodesPath, node("a", 1))
	r := start(t, f, "a")
	errtest.Must(t, r.Publish(claim(1)))
	r.until("published", func(s cluster.State) bool {
		return s.Synced && find(s, "a").Claim != nil
	})
	for _, there := range []bool{true, false} {
		if removed, err := r.Remove(context.Background()); err != nil || removed != there {
			t.Fatalf("removed %v, %v; there %v", removed, err, there)
		}
	}
	r.until("gone", func(s cluster.State) bool { return find(s, "a").Claim == nil })
	f.put(nodesPath, node("b", 2))
	r.until("another change was seen", func(s cluster.State) bool { return len(s.Nodes) == 2 })
	if f.object(veilNodesPath, "a") != nil {
		t.Error("the VeilNode came back")
	}
}

func TestRemoveWaitsForAWriteInProgress(t *testing.T) {
	f := newFakeServer(t)
	f.put(nodesPath, node("a", 1))
	asked, answer := make(chan struct{}), make(chan struct{})
	var once sync.Once
	f.before = func(what string) {
		if what == "GET "+veilNodesPath+"/a" {
			once.Do(func() { close(asked); <-answer })
		}
	}

	r := start(t, f, "a")
	errtest.Must(t, r.Publish(claim(1)))
	<-asked // the write looked, and creates the object as soon as it has its answer

	short, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if removed, err := r.Remove(short); removed || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with a write in progress: removed %t, error %v", removed, err)
	}

	// The write ends after Remove was called.
	time.AfterFunc(10*time.Millisecond, func() { close(answer) })
	if removed, err := r.Remove(context.Background()); err != nil || !removed {
		t.Errorf("removed %t, error %v; the write made an object", removed, err)
	}
	if f.object(veilNodesPath, "a") != nil {
		t.Error("the VeilNode came back")
	}
}

func TestRemoveExplainsARefusal(t *testing.T) {
	f := newFakeServer(t)
	f.setRefuse("DELETE "+veilNodesPath, 403)
	c, err := newClient(ClientConfig{Node: "a"}, f.config())
	errtest.Must(t, err)
	if _, err := c.Remove(context.Background()); err == nil ||
		!strings.Contains(err.Error(), "may not delete") {
		t.Errorf("error %v", err)
	}
}

func TestOrphansAreCollectedAndNothingElse(t *testing.T) {
	f := newFakeServer(t)
	f.put(nodesPath, node("alive", 1))
	f.put(veilNodesPath, veilNode("alive", 1))
	f.put(veilNodesPath, veilNode("gone", 2))
	for _, name := range []string{"alive", "other"} { // two nodes at once
		start(t, f, name)
	}
	eventually(t, "the orphan is deleted", func() bool {
		return f.object(veilNodesPath, "gone") == nil
	})
	if f.object(veilNodesPath, "alive") == nil {
		t.Error("a VeilNode with a Node was deleted")
	}
}

func TestOrphanIsLeftWhenDeletingIsRefused(t *testing.T) {
	f := newFakeServer(t)
	f.put(veilNodesPath, veilNode("gone", 2))
	f.setRefuse("DELETE "+veilNodesPath, 403)
	r := start(t, f, "a")
	eventually(t, "it was tried", func() bool { return f.count("DELETE "+veilNodesPath) == 1 })
	eventually(t, "looked again", func() bool { return f.count("GET "+nodesPath) >= 1 })
	if p := r.Problems(); len(p) != 0 {
		t.Errorf("problems %q: a policy that leaves orphans to the garbage collector is none", p)
	}
}

func TestDueOrphans(t *testing.T) {
	begin := time.Unix(1000, 0)
	minute := func(string) time.Duration { return time.Minute }
	nodes := map[string]nodeEntry{"alive": {}}
	veils := map[string]veilNodeEntry{"alive": {uid: "1"}, "gone": {uid: "2"},
		"refused": {uid: "3"}}
	o := &orphans{refused: map[types.UID]bool{"3": true}}
	for _, step := range []struct {
		situation string
		after     time.Duration
		nodes     map[string]nodeEntry
		want      int
	}{
		{"first seen", 0, nodes, 0},
		{"not long enough", 59 * time.Second, nodes, 0},
		{"long enough", time.Minute, nodes, 1},
		{"its Node is back", 61 * time.Second, map[string]nodeEntry{"alive": {}, "gone": {}}, 0},
		{"gone again: the wait begins anew", 62 * time.Second, nodes, 0},
		{"and ends", 2*time.Minute + 2*time.Second, nodes, 1},
	} {
		due := o.due(begin.Add(step.after), step.nodes, veils, minute)
		if _, has := due["gone"]; len(due) != step.want || has != (step.want == 1) {
			t.Errorf("%s: due %v, want %d", step.situation, due, step.want)
		}
	}
}
