package main

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"

	"github.com/kubeveil/kubeveil/csi/backend"
	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt/dmcrypttest"
	"github.com/kubeveil/kubeveil/csi/driver"
	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/csi/kubestore"
	"github.com/kubeveil/kubeveil/csi/mount"
	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// bound is a mount table without file systems.
type bound struct {
	mount.System
	table []mount.Mount
}

func (b *bound) List() ([]mount.Mount, error)      { return b.table, nil }
func (b *bound) Usage(string) (mount.Usage, error) { return mount.Usage{Total: 1}, nil }

const loadVolumes = 100

// loaded is a driver of a node with mounted volumes. Their states are in a fake API server that
// counts requests.
type loaded struct {
	*driver.Driver
	client *fake.FakeDynamicClient
	store  *kubestore.Store
	states states
	engine *dmcrypttest.Engine
}

// at returns the path at which the volume is mounted.
func at(v string) string { return "/pods/" + v }

func ready(i int) volume.State {
	return volume.State{
		Volume: fmt.Sprintf("pvc-%d", i), Cluster: "c",
		Request: volume.Request{Node: "node-1", Backend: driver.BackendFile},
		Phase:   volume.Ready, Payload: crypt.SectorSize, UUID: crypt.UUID{1, byte(i)},
		Content: volume.Made, Writer: "node-1", Epoch: 2,
		Key: keyring.Wrapped{Provider: keyring.NameFile, KeyID: "k", Blob: []byte{1}},
	}
}

func newLoaded(t *testing.T) *loaded {
	t.Helper()
	kinds := map[schema.GroupVersionResource]string{kubestore.VeilVolumes: kubestore.Kind + "List"}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds)
	l := &loaded{client: client, store: kubestore.NewForClient(client, "node-1"),
		engine: dmcrypttest.New()}

	mounts := &bound{}
	for i := range loadVolumes {
		st := ready(i)
		errtest.Must(t, l.store.Create(t.Context(), st))
		table := dmcrypt.Expected(st.UUID, st.Epoch, st.Payload, 1, "", false)
		m, err := l.engine.Create(t.Context(), table, nil)
		errtest.Must(t, err)
		mounts.table = append(mounts.table, mount.Mount{Target: at(st.Volume), Device: m.Number,
			Root: true})
	}

	set := volume.NewSet(volume.Config{
		Cluster: "c", Node: "node-1", Store: l.store, Engine: l.engine,
		Backend: &backend.Files{Dir: t.TempDir()},
	})
	l.states = statesIn(l.store, nil)
	var err error
	l.Driver, err = driver.New(driver.Config{
		Node: "node-1", Sets: map[string]*volume.Set{driver.BackendFile: set}, Mounts: mounts,
		Cache: l.states.reader(),
	})
	errtest.Must(t, err)

	return l
}

// run runs the driver's upkeep until ctx ends. wait waits for its end.
func (l *loaded) run(ctx context.Context) (wait func() error) {
	var g errgroup.Group
	o := options{rewrapEvery: 10 * time.Minute, trimEvery: time.Hour,
		requestsEvery: 10 * time.Second}
	p := newProcess(&o, l.Driver, l.states, slog.New(slog.DiscardHandler))
	p.alone(ctx, &g)
	p.upkeep(ctx, &g)
	return g.Wait
}

// An idle driver sends hardly any requests to the API server, because it answers the kubelet's
// requests for statistics and its own upkeep from its watch.
func TestRequestsOfADriverAtRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoaded(t)
		l.client.ClearActions()
		ctx, cancel := context.WithCancel(t.Context())
		wait := l.run(ctx)

		for range 10 {
			<-time.After(time.Minute)
			for i := range loadVolumes {
				v := ready(i).Volume
				if _, err := l.NodeGetVolumeStats(ctx,
					&csi.NodeGetVolumeStatsRequest{VolumeId: v, VolumePath: at(v)}); err != nil {
					t.Fatal(err)
				}
			}
		}

		verbs := map[string]int{}
		for _, a := range l.client.Actions() {
			verbs[a.GetVerb()]++
		}

		if n := len(l.client.Actions()); n > 5 {
			t.Errorf("%d requests in ten minutes, want at most 5: %v", n, verbs)
		}

		cancel()
		errtest.Check(t, wait())
	})
}

// A volume that another node takes over is fenced within two seconds. Other volumes are not fenced.
// That holds while the volume's object names this node, once it names the other node, and after the
// other node has closed the volume.
func TestTakeoverIsSeenInTwoSeconds(t *testing.T) {
	for name, writer := range map[string]string{"open there": "node-2", "closed there again": ""} {
		for of, node := range map[string]string{"of this node": "node-1",
			"of the other": "node-2"} {
			t.Run(of+", "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := newLoaded(t)
					ctx, cancel := context.WithCancel(t.Context())
					wait := l.run(ctx)
					<-time.After(time.Minute)
					if n := len(l.engine.Live()); n != loadVolumes {
						t.Errorf("before: %d mappings", n)
					}

					l.edit(t, node, "spec", "node")
					<-time.After(time.Minute)
					if n := len(l.engine.Live()); n != loadVolumes {
						t.Errorf("given to another node that has not opened it: %d mappings", n)
					}

					l.edit(t, int64(4), "status", "epoch")
					l.edit(t, writer, "status", "writer")
					<-time.After(2 * time.Second)
					synctest.Wait()
					if n := len(l.engine.Live()); n != loadVolumes-1 {
						t.Errorf("after two seconds: %d mappings can write", n)
					}

					cancel()
					errtest.Check(t, wait())
				})
			})
		}
	}
}

// edit changes a field of the first volume, as another client would.
func (l *loaded) edit(t *testing.T, value any, field ...string) {
	t.Helper()
	v := ready(0).Volume
	objects := l.client.Resource(kubestore.VeilVolumes)
	o, err := objects.Get(t.Context(), v, metav1.GetOptions{})
	if err == nil {
		err = unstructured.SetNestedField(o.Object, value, field...)
	}
	if err == nil {
		_, err = objects.Update(t.Context(), o, metav1.UpdateOptions{})
	}
	errtest.Must(t, err)
}
