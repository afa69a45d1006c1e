package service

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench/bpffs"
	"github.com/kubeveil/kubeveil/e2e/bench/service/peer"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/kube"
	"github.com/kubeveil/kubeveil/pkg/service"
)

// told is a sink that counts the objects that it receives.
type told struct {
	mu       sync.Mutex
	services int
	last     service.Slice
	backends int
	listed   bool
}

func (s *told) PutService(service.Service) { s.note(func() { s.services++ }) }
func (s *told) DeleteService(service.Name) {}
func (s *told) PutSlice(v service.Slice) {
	s.note(func() { s.last = v; s.backends += v.Endpoints.Len() })
}
func (s *told) DeleteSlice(service.Name, string) {}
func (s *told) Listed()                          { s.note(func() { s.listed = true }) }
func (s *told) note(f func())                    { s.mu.Lock(); defer s.mu.Unlock(); f() }
func (s *told) is(so func() bool) func() bool {
	return func() bool { s.mu.Lock(); defer s.mu.Unlock(); return so() }
}

// TestFeedIsReadAsAnAPIServer checks that veild's own client reads the feed's objects and changes.
func TestFeedIsReadAsAnAPIServer(t *testing.T) {
	plan := manyServices(20, 10)
	f, err := peer.NewFeed(nodeAddr(0), plan)
	errtest.Must(t, err)
	defer f.Close()
	config := filepath.Join(t.TempDir(), "kubeconfig")
	errtest.Must(t, f.WriteConfig(config))
	client, err := kube.New(kube.ClientConfig{Node: peer.NodeName, Kubeconfig: config})
	errtest.Must(t, err)

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	s := &told{}
	go func() { done <- client.RunServices(ctx, service.DefaultLimits, s) }()
	defer func() { cancel(); <-done }()
	nettest.Until(t, 20*time.Second, "listed", s.is(func() bool { return s.listed }))
	if s.services != 20 || s.backends != 200 {
		t.Errorf("%d services, %d backends, want 20 and 200; problems %v", s.services, s.backends,
			client.Problems())
	}
	if _, err := f.Change(ctx, changed(plan[7], 100)); err != nil {
		t.Fatal(err)
	}

	want := plan[7].Service.Name
	nettest.Until(t, 20*time.Second, "told of the change", s.is(func() bool {
		return s.last.Service == want && s.last.Endpoints.At(0).Addr == backend(107) &&
			s.last.Endpoints.At(0).Ready
	}))
}

// TestTableFollowsTheFeed checks that a small table is written from a feed, and follows a change.
func TestTableFollowsTheFeed(t *testing.T) {
	nettest.NeedRoot(t)
	nettest.NeedBPF(t)
	pins, err := bpffs.New()
	errtest.Must(t, err)
	defer pins.Close()
	plan := manyServices(20, 10)
	dir := pins.Dir("feed")
	w, err := newWatched(t.Context(), dir, filepath.Join(t.TempDir(), "kubeconfig"), plan)
	defer func() {
		errtest.Check(t, w.close(dir))
	}()

	errtest.Must(t, err)
	first, err := w.next(t.Context())
	began, listed := w.feed.Began(), w.node.Listed()
	if err != nil || first.Frontends != len(plan) || !first.At.After(listed) ||
		began.IsZero() || !listed.After(began) {
		t.Fatalf("written %+v, began %v, listed %v: %v", first, began, listed, err)
	}
	if _, err := w.feed.Change(t.Context(), changed(plan[3], 100)); err != nil {
		t.Fatal(err)
	}

	if wr, err := w.next(t.Context()); err != nil || wr.Frontends != 1 {
		t.Errorf("a change wrote %+v: %v", wr, err)
	}
	errtest.Check(t, w.node.Problems(t.Context()))
}

func TestMissing(t *testing.T) {
	for name, tt := range map[string]struct{ ours, theirs, want float64 }{
		"half of what there is, of a rate":    {0.9, 0.8, 50},
		"nine tenths, of a latency":           {1.02, 1.2, 10},
		"as good as direct":                   {1, 0.8, 0},
		"better than direct":                  {1.1, 0.8, 0},
		"worse than IPVS":                     {0.7, 0.8, 150},
		"nothing to gain, and something lost": {0.95, 1.001, 5},
	} {
		if got := missing(tt.ours, tt.theirs); got < tt.want-1e-6 || got > tt.want+1e-6 {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}
