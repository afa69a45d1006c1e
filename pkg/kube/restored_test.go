package kube

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/klog/v2"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
)

// watchedKinds are all kinds that veild and veil-site watch.
var watchedKinds = append([]object.Kind{
	object.Nodes, object.VeilNodes, object.SiteNodes, object.ServiceCIDRs, object.APIServerSlice,
	object.APIServerService, object.Services, object.EndpointSlices, object.ServiceSlices,
	object.Pods, object.Namespaces, object.NetworkPolicies, object.ClusterPolicies,
	object.ClusterPolicies.Definition(), object.ServiceExports, object.ServiceImports,
	object.SiteRecords, object.SiteLinks, object.AllServices, object.AllSlices,
	object.AllNamespaces,
}, object.IgnoredPolicies...)

// nameStore is a reflector's store that keeps names.
type nameStore struct {
	mu    sync.Mutex
	names map[string]bool
	lists int
}

func (s *nameStore) do(v any, has bool) error {
	o, ok := object.Held(v)
	if !ok {
		return fmt.Errorf("unexpected %T", v)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.names[o.Name] = true; !has {
		delete(s.names, o.Name)
	}
	return nil
}

func (s *nameStore) Add(v any) error    { return s.do(v, true) }
func (s *nameStore) Update(v any) error { return s.do(v, true) }
func (s *nameStore) Delete(v any) error { return s.do(v, false) }
func (s *nameStore) Resync() error      { return nil }

func (s *nameStore) Replace(list []any, _ string) error {
	s.mu.Lock()
	s.names = map[string]bool{}
	s.lists++
	s.mu.Unlock()
	for _, v := range list {
		if err := s.Add(v); err != nil {
			return err
		}
	}
	return nil
}

func (s *nameStore) wait(t *testing.T, what string, names ...string) {
	t.Helper()
	var got []string
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s: the store has %v, not %v", what, got, names)
		}
	})
	nettest.Until(t, time.Minute, what, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		got = slices.Sorted(maps.Keys(s.names))
		return slices.Equal(got, names)
	})
}

// reflected keeps a store of names like a kind until the test ends.
func reflected(t *testing.T, f *fakeServer, k object.Kind) (*Client, *nameStore) {
	t.Helper()
	c, err := newClient(ClientConfig{Node: "node-1"}, f.config())
	errtest.Must(t, err)
	quicken(c)
	k.Name = "" // of some kinds one object is watched
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), klog.Logger{}))
	s, done := &nameStore{}, make(chan struct{})
	go func() { defer close(done); c.server.Reflect(ctx, k, s) }()
	t.Cleanup(func() { cancel(); <-done })
	return c, s
}

// After a restore, etcd uses revisions for a second time. A watch that continued at its revision
// would miss the next changes.
func TestRestoredEtcdIsReadAgain(t *testing.T) {
	for _, k := range watchedKinds {
		path := k.Path
		for _, noStream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, noStream %t", k.What, noStream), func(t *testing.T) {
				f := newFakeServer(t)
				f.noStream = noStream
				named := func(name string) m { return m{"metadata": m{"name": name}} }
				f.put(path, named("a"))
				f.put(path, named("goes"))
				before := f.backup()
				c, s := reflected(t, f, k)
				s.wait(t, "first list", "a", "goes")
				f.remove(path, "goes")
				for range 20 {
					f.put(path, named("later"))
				}
				s.wait(t, "changes", "a", "later")

				f.restore(before)
				f.put(path, named("restored"))
				s.wait(t, "read again", "a", "goes", "restored")
				f.put(path, named("z"))
				s.wait(t, "watched again", "a", "goes", "restored", "z")
				nettest.Until(t, 10*time.Second, "no problem", func() bool {
					return len(c.Problems()) == 0
				})
			})
		}
	}
}

// A server whose cache lags undoes no change, because only a quorum read may return older data than
// what is known.
func TestListOfALaggingServerUndoesNothing(t *testing.T) {
	for _, k := range watchedKinds {
		path := k.Path
		t.Run(k.What, func(t *testing.T) {
			f := newFakeServer(t)
			f.noStream = true
			f.put(path, m{"metadata": m{"name": "a"}})
			before := f.backup()
			f.put(path, m{"metadata": m{"name": "b"}})
			f.lags = before

			_, s := reflected(t, f, k)
			s.wait(t, "the first list is a quorum read", "a", "b")
			f.put(path, m{"metadata": m{"name": "c"}})
			s.wait(t, "watched", "a", "b", "c")
			f.endWatches()
			f.put(path, m{"metadata": m{"name": "d"}})
			s.wait(t, "after a broken watch", "a", "b", "c", "d")
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.lists != 1 {
				t.Errorf("%d lists were read, though the watch could go on", s.lists)
			}
		})
	}
}
