package apifeed

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/kube"
	"github.com/kubeveil/kubeveil/pkg/service"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

// sink holds the numbers of endpoints by slice.
type sink struct {
	mu       sync.Mutex
	slices   map[string]int
	services int
}

func (s *sink) do(f func())                { s.mu.Lock(); defer s.mu.Unlock(); f() }
func (s *sink) PutService(service.Service) { s.do(func() { s.services++ }) }
func (s *sink) DeleteService(service.Name) { s.do(func() { s.services-- }) }
func (s *sink) PutSlice(v service.Slice) {
	s.do(func() { s.slices[v.Name] = v.Endpoints.Len() })
}
func (s *sink) DeleteSlice(_ service.Name, n string) { s.do(func() { delete(s.slices, n) }) }
func (s *sink) Listed()                              {}

// Veild's client reads the feed's objects, and follows it through changes, deletions, a compaction
// that it misses, and an error in the midst.
func TestClientFollowsTheFeed(t *testing.T) {
	f := New()
	defer f.Close()
	shape := Shape{Endpoints: 250, PerService: 120}
	errtest.Must(t, shape.Fill(f))
	config := filepath.Join(t.TempDir(), "kubeconfig")
	errtest.Must(t, f.WriteConfig(config))
	client, err := kube.New(kube.ClientConfig{Node: Node, Kubeconfig: config})
	errtest.Must(t, err)
	s := &sink{slices: map[string]int{}}
	ctx, end := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	defer ended.Wait()
	defer end()
	ended.Go(func() { _ = client.RunServices(ctx, service.DefaultLimits, s) })
	follows := func(what string, services int, sizes ...int) {
		t.Helper()
		nettest.Until(t, 20*time.Second, what, func() (is bool) {
			s.do(func() {
				is = s.services == services &&
					slices.Equal(slices.Sorted(maps.Values(s.slices)), sizes)
			})
			return is
		})
	}
	follows("listed", 3, 10, 20, 20, 100, 100)

	last := shape.Slices(2)[0]
	last.Endpoints = last.Endpoints[:7]
	errtest.Must(t, f.Put(last))
	errtest.Must(t, f.Delete(shape.Slices(0)[1]))
	follows("changed", 3, 7, 20, 100, 100)

	f.Cut()
	errtest.Must(t, f.Delete(shape.Service(0)))
	errtest.Must(t, f.Delete(shape.Slices(0)[0]))
	f.Compact()
	f.Restore()
	follows("listed again", 2, 7, 20, 100)

	errtest.Must(t, f.Expire(Slices))
	errtest.Must(t, f.PutBad(last))
	errtest.Must(t, f.Put(shape.Slices(0)[0]))
	follows("beside an object that cannot be read", 2, 7, 20, 100, 100)
	reached, release := f.Hold(Slices, 1)
	f.Cut()
	errtest.Must(t, f.Delete(last))
	f.Compact()
	f.Restore()
	<-reached
	follows("while a list stops midway", 2, 7, 20, 100, 100)
	release()
	follows("read to its end", 2, 20, 100, 100)
}
