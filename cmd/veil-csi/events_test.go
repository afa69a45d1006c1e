package main

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/driver"
	"github.com/kubeveil/kubeveil/csi/kubestore"
	"github.com/kubeveil/kubeveil/csi/mount"
	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// A refused disk causes an event at the claim, at most once in a period. Other errors do not cause
// events.
func TestRefusalsBecomeEventsOfTheClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said []string
		w := newWarner(func(_ context.Context, volume, reason, _ string) error {
			said = append(said, volume+" "+reason)
			return volumeError(volume)
		}, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go w.run(ctx)
		refused := func(v string, kind crypt.Kind) {
			w.observe(driver.Call{Volume: v,
				Err: fmt.Errorf("stage: %w", &crypt.RefusedError{Kind: kind})})
			synctest.Wait()
		}

		for range 3 {
			refused("a", crypt.OlderImage)
		}

		refused("a", crypt.Tampered)
		refused("b", crypt.OlderImage)
		w.observe(driver.Call{Volume: "c", Err: volume.ErrInUse})
		w.observe(driver.Call{Volume: "c"})
		<-time.After(warnAgain)
		refused("a", crypt.OlderImage)
		if want := []string{"a OlderImage", "a Tampered", "b OlderImage",
			"a OlderImage"}; !slices.Equal(said, want) {
			t.Errorf("said %q, want %q", said, want)
		}
	})
}

// volumeError returns an error for one of the volumes. The other volumes still get their events.
func volumeError(v string) error {
	if v == "b" {
		return volume.ErrNotFound
	}
	return nil
}

// Events that could not be made while the API server was away are made when it is back, in order
// and once each.
func TestNoticesWaitForTheAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said []string
		var back atomic.Bool
		w := newWarner(func(_ context.Context, v, reason, _ string) error {
			if !back.Load() {
				return volume.ErrUnavailable
			}
			said = append(said, v+" "+reason)
			return nil
		}, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go w.run(ctx)

		want := make([]string, warnings)
		for i := range warnings + 1 {
			n := driver.Notice{Volume: fmt.Sprint(i), Reason: "Fenced"}
			if i < warnings {
				want[i] = n.Volume + " Fenced"
			}
			w.notice(n)
			synctest.Wait()
		}

		<-time.After(2 * warnRetry)
		back.Store(true)
		<-time.After(2 * warnRetry)
		synctest.Wait()
		if !slices.Equal(said, want) {
			t.Errorf("said %q, want %q", said, want)
		}
	})
}

// joined is a driver with a fake API server. Its volume pvc-0 has a claim.
type joined struct {
	*found
	process *process
	client  *fake.FakeDynamicClient
}

var events = schema.GroupVersionResource{Version: "v1", Resource: "events"}

// object returns an object without a namespace.
func object(kind, name string, meta, spec map[string]any) *unstructured.Unstructured {
	meta["name"] = name
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": kind,
		"metadata": meta, "spec": spec}}
}

// newJoined runs a driver until the test ends. The state of its volume is st.
func newJoined(t *testing.T, st volume.State) *joined {
	t.Helper()
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{kubestore.VeilVolumes: kubestore.Kind + "List",
			events: "EventList"},
		object("Namespace", metav1.NamespaceSystem, map[string]any{"uid": st.Cluster}, nil),
		object("PersistentVolume", st.Volume, map[string]any{}, map[string]any{"claimRef": map[string]any{
			"namespace": "shop", "name": "data", "uid": "u"}}))
	store := kubestore.NewForClient(client, "node-1")
	errtest.Must(t, store.Create(t.Context(), st))

	j := &joined{found: newFound(t, 2), client: client}
	log := slog.New(slog.DiscardHandler)
	s := statesIn(store, log)
	sets, err := j.sets(s, log)
	errtest.Must(t, err)
	m, err := j.Lookup(t.Context(), j.mapping)
	errtest.Must(t, err)
	d, err := driver.New(driver.Config{Node: "node-1", Sets: sets, Cache: s.reader(),
		Mounts: &bound{table: []mount.Mount{{Target: at(st.Volume), Device: m.Number, Root: true}}}})
	errtest.Must(t, err)

	j.process = newProcess(&j.found.options, d, s, log)
	ctx, cancel := context.WithCancel(context.Background())
	g, ctx := errgroup.WithContext(ctx)
	t.Cleanup(func() {
		cancel()
		errtest.Check(t, g.Wait())
	})
	errtest.Must(t, j.process.join(ctx, g))
	return j
}

// stats requests the statistics of a volume, as the kubelet does.
func (j *joined) stats(t *testing.T, v string) {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+j.endpoint,
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	errtest.Must(t, err)
	defer conn.Close()
	if _, err := csi.NewNodeClient(conn).NodeGetVolumeStats(t.Context(),
		&csi.NodeGetVolumeStatsRequest{VolumeId: v, VolumePath: at(v)}); err == nil {
		t.Error("no error for a mapping with a later epoch than its state")
	}
}

// Errors of calls, and actions and errors of upkeep, become events at the claim of the volume. They
// are also counted.
func TestEventsAtTheClaim(t *testing.T) {
	for name, c := range map[string]struct {
		writer          string
		epoch           uint64
		called          bool
		reason, counter string
	}{
		"a call meets a refusal":  {"node-1", 1, true, "NewerThanState", "kubeveil_csi_refused_total"},
		"upkeep meets a refusal":  {"node-2", 1, false, "NewerThanState", "kubeveil_csi_refused_total"},
		"another node has opened": {"node-2", 3, false, "Fenced", "kubeveil_csi_fenced_total"},
	} {
		t.Run(name, func(t *testing.T) {
			st := ready(0)
			st.UUID, st.Writer, st.Epoch = crypt.UUID{1}, c.writer, c.epoch
			j := newJoined(t, st)
			if c.called {
				j.stats(t, st.Volume)
			}

			var list *unstructured.UnstructuredList
			nettest.Until(t, 10*time.Second, "an event", func() (ok bool) {
				var err error
				list, err = j.client.Resource(events).Namespace("shop").List(t.Context(),
					metav1.ListOptions{})
				return err == nil && len(list.Items) > 0
			})
			o := list.Items[0].Object
			claim, _ := o["involvedObject"].(map[string]any)
			if o["reason"] != c.reason || claim["name"] != "data" {
				t.Errorf("%v", o)
			}
			if n := j.counted(t, c.counter); n != 1 {
				t.Errorf("%s is %v, want 1", c.counter, n)
			}
		})
	}
}

// counted returns the sum of a counter.
func (j *joined) counted(t *testing.T, name string) (sum float64) {
	t.Helper()
	families, err := j.process.registry.Gather()
	errtest.Must(t, err)
	for _, f := range families {
		for _, each := range f.Metric {
			if f.GetName() == name {
				sum += each.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// A driver that fences a mapping at its start, before it has read the states, makes the event at
// the claim later.
func TestVolumeOfAMappingThatWasFencedFirst(t *testing.T) {
	j := newJoined(t, func() volume.State {
		st := ready(0)
		st.UUID, st.Epoch = crypt.UUID{1}, 2
		return st
	}())
	j.process.driver.Happened(j.mapping, volume.Fenced)
	nettest.Until(t, 10*time.Second, "an event", func() bool {
		list, err := j.client.Resource(events).Namespace("shop").List(t.Context(),
			metav1.ListOptions{})
		return err == nil && len(list.Items) == 1
	})
}
