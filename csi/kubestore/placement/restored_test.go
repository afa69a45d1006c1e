package placement

import (
	"context"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kubeveil/kubeveil/csi/kubestore"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

func init() {
	// One of client-go's handlers compares the real time of its start with the clock of a bubble.
	utilruntime.ErrorHandlers = nil
}

// After a restore, etcd has lower revisions, and a watch at the former revision would show no
// claim. Claims that come then are placed.
func TestPlacementGoesOnAfterARestoreOfEtcd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := objectOf("v1", "PersistentVolumeClaim", "a", "source",
			map[string]any{"spec": map[string]any{"volumeName": "pv"}})
		source.SetUID("uid-source")
		pv := objectOf("v1", "PersistentVolume", "", "pv", map[string]any{"spec": map[string]any{
			"csi":      map[string]any{"driver": kubestore.DriverName},
			"claimRef": map[string]any{"uid": "uid-source"},
			"nodeAffinity": map[string]any{"required": map[string]any{"nodeSelectorTerms": []any{
				map[string]any{"matchExpressions": []any{map[string]any{"key": topologyKey,
					"operator": "In", "values": []any{"node-1"}}}}}}}}})
		client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
			map[schema.GroupVersionResource]string{claimResource: "PersistentVolumeClaimList"},
			source, pv, objectOf("storage.k8s.io/v1", "StorageClass", "", "ours",
				map[string]any{"provisioner": kubestore.DriverName}))

		var mu sync.Mutex
		revision, watching := 100, (*watch.FakeWatcher)(nil)
		client.PrependReactor("list", claimResource.Resource,
			func(clienttesting.Action) (bool, runtime.Object, error) {
				list, err := client.Tracker().List(claimResource,
					core.WithKind("PersistentVolumeClaim"), "")
				mu.Lock()
				defer mu.Unlock()
				if l, ok := list.(*unstructured.UnstructuredList); ok {
					l.SetResourceVersion(strconv.Itoa(revision))
				}
				return true, list, err
			})
		client.PrependWatchReactor(claimResource.Resource,
			func(clienttesting.Action) (bool, watch.Interface, error) {
				mu.Lock()
				defer mu.Unlock()
				watching = watch.NewFake()
				return true, watching, nil
			})

		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		p := NewForClient(client, slog.New(slog.DiscardHandler))
		go func() { defer close(done); p.Run(ctx) }()
		defer func() { cancel(); <-done; synctest.Wait() }()
		// add adds a claim that the API server's watch shows, or only a list.
		add := func(name string, shows bool) {
			claim := copyClaim(name, "ours", "PersistentVolumeClaim", "source")
			errtest.Must(t, client.Tracker().Add(claim))
			if shows {
				claim.SetResourceVersion("101")
				watching.Add(claim)
			}
		}
		placed := func(name string) bool {
			o, err := client.Resource(claimResource).Namespace("a").Get(ctx, name,
				metav1.GetOptions{})
			errtest.Must(t, err)
			return o.GetAnnotations()[selectedNode] == "node-1"
		}

		synctest.Wait()
		add("before", true)
		add("unseen", false)
		time.Sleep(time.Minute)
		if !placed("before") || placed("unseen") {
			t.Fatal("the watch is not what shows new claims: the test shows nothing")
		}

		mu.Lock()
		revision = 50
		mu.Unlock()
		watching.Stop()
		time.Sleep(10 * time.Second)
		if !placed("unseen") {
			t.Error("the claims were not listed again")
		}
		add("after", true)
		time.Sleep(10 * time.Second)
		if !placed("after") {
			t.Error("a claim that came after the restore is not placed")
		}
	})
}
