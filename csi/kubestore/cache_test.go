package kubestore

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kubeveil/kubeveil/csi/volume"
)

// watched runs a cache for the store's node until the test ends.
func watched(t *testing.T, s *Store) *Cache {
	t.Helper()
	c := s.NewCache(nil)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return c
}

// on returns the object of a volume whose disk is on the node.
func on(name, node string) *unstructured.Unstructured {
	st := full()
	st.Volume, st.Request.Node, st.Writer = name, node, node
	return must(encode(name, "1", specOf(st), must(statusOf(st))))
}

func (c *Cache) names(t *testing.T) []string {
	t.Helper()
	var names []string
	states, err := c.List(t.Context())
	if err != nil {
		t.Error(err)
	}
	for _, st := range states {
		names = append(names, st.Volume)
	}
	slices.Sort(names)
	return names
}

// The cache follows the volumes of its node. If the API server cannot select volumes by node, the
// cache requests all volumes.
func TestCacheFollowsTheVolumesOfItsNode(t *testing.T) {
	for situation, selects := range map[string]bool{"by field": true, "without fields": false} {
		t.Run(situation, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				kinds := map[schema.GroupVersionResource]string{VeilVolumes: Kind + "List"}
				client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds,
					on("mine", "node-1"), on("other", "node-2"))
				var asked []string
				client.PrependReactor("list", Resource,
					func(a clienttesting.Action) (bool, runtime.Object, error) {
						selector := a.(clienttesting.ListAction).GetListRestrictions().
							Fields.String()
						asked = append(asked, selector)
						if selector != "" && !selects {
							return true, nil, apierrors.NewBadRequest(
								"field label not supported: spec.node")
						}
						return false, nil, nil
					})
				c := watched(t, NewForClient(client, "node-1"))
				synctest.Wait()
				if got := c.names(t); !cmp.Equal(got, []string{"mine"}) {
					t.Errorf("at first: %v", got)
				}
				want := []string{"spec.node=node-1"}
				if !selects {
					want = append(want, "")
				}
				if !cmp.Equal(asked, want) {
					t.Errorf("lists by %q, want %q", asked, want)
				}

				volumes := client.Resource(VeilVolumes)
				_, made := volumes.Create(t.Context(), on("new", "node-1"), metav1.CreateOptions{})
				_, moved := volumes.Update(t.Context(), on("mine", "node-2"),
					metav1.UpdateOptions{})
				synctest.Wait()
				if got := c.names(t); made != nil || moved != nil ||
					!cmp.Equal(got, []string{"new"}) {
					t.Errorf("after one was made and one moved away: %v, %v, %v", got, made, moved)
				}
				err := volumes.Delete(t.Context(), "new", metav1.DeleteOptions{})
				synctest.Wait()
				if got := c.names(t); err != nil || len(got) != 0 {
					t.Errorf("deleted: %v, %v", got, err)
				}
			})
		})
	}
}

// A read that the cache can answer does not cause a request. Other reads go to the API server. A
// cache that is not filled yet must not report that a volume does not exist.
func TestCacheAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kinds := map[schema.GroupVersionResource]string{VeilVolumes: Kind + "List"}
		broken := on("broken", "node-1")
		delete(broken.Object, "status")
		client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds,
			on("mine", "node-1"), on("other", "node-2"), broken)
		s := NewForClient(client, "node-1")
		if _, err := s.NewCache(nil).List(t.Context()); !errors.Is(err, volume.ErrUnavailable) {
			t.Errorf("before the cache was filled: %v", err)
		}

		c := watched(t, s)
		synctest.Wait()
		for name, want := range map[string]struct {
			err  error
			gets int
		}{"mine": {nil, 0}, "broken": {volume.ErrState, 0}, "other": {nil, 1},
			"none": {volume.ErrNotFound, 1}} {
			client.ClearActions()
			st, _, err := c.Get(t.Context(), name)
			if !errors.Is(err, want.err) || err == nil && st.Volume != name ||
				len(client.Actions()) != want.gets {
				t.Errorf("%s: %s, %v, %d requests", name, st.Volume, err, len(client.Actions()))
			}
		}

		if _, err := c.List(t.Context()); !errors.Is(err, volume.ErrState) {
			t.Errorf("a state that cannot be read: %v", err)
		}
	})
}

// A restored etcd reuses revisions. The cache still receives later writes.
func TestCacheIsReadAgainAfterARestoreOfEtcd(t *testing.T) {
	handlers := utilruntime.ErrorHandlers
	utilruntime.ErrorHandlers = nil // one of them compares real time with the bubble's time
	t.Cleanup(func() { utilruntime.ErrorHandlers = handlers })
	synctest.Test(t, func(t *testing.T) {
		kinds := map[schema.GroupVersionResource]string{VeilVolumes: Kind + "List"}
		client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds)
		names, revision := []string{"before", "later"}, "9"
		client.PrependReactor("list", Resource,
			func(clienttesting.Action) (bool, runtime.Object, error) {
				list := &unstructured.UnstructuredList{}
				list.SetResourceVersion(revision)
				for _, name := range names {
					list.Items = append(list.Items, *on(name, "node-1"))
				}
				return true, list, nil
			})
		var w *watch.FakeWatcher
		client.PrependWatchReactor(Resource,
			func(clienttesting.Action) (bool, watch.Interface, error) {
				w = watch.NewFake()
				return true, w, nil
			})

		c := watched(t, NewForClient(client, "node-1"))
		synctest.Wait()
		if got := c.names(t); !cmp.Equal(got, []string{"before", "later"}) {
			t.Errorf("at first: %v", got)
		}
		time.Sleep(time.Second)
		names, revision = []string{"before", "restored"}, "5"
		w.Stop()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got := c.names(t); !cmp.Equal(got, []string{"before", "restored"}) {
			t.Errorf("after the restore: %v", got)
		}
	})
}
