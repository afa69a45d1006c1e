package scale

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench/bpffs"
	"github.com/kubeveil/kubeveil/e2e/scale/apifeed"
	"github.com/kubeveil/kubeveil/e2e/scale/servicenode"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/load"
	"github.com/kubeveil/kubeveil/pkg/service"
)

// want is what the table must have.
type want struct{ frontends, endpoints int }

func wantOf(shape apifeed.Shape) want { return want{shape.Services(), shape.Endpoints} }

// beside returns w with the service of the API servers, default/kubernetes.
func (w want) beside() want { return want{w.frontends + 1, w.endpoints + 1} }

// node is a node with a table of its own.
type node struct {
	*servicenode.Veild
	writes *writes
	pins   *bpffs.FS
}

// openNode opens a node that expects writes of some frontends.
func openNode(config string, frontends int) (*node, error) {
	pins, err := bpffs.New()
	if err != nil {
		return nil, err
	}
	n := &node{writes: newWrites(frontends), pins: pins}
	n.Veild, err = servicenode.Open(servicenode.Config{Name: apifeed.Node, Kubeconfig: config,
		Dir: n.dir(), Limits: service.DefaultLimits, Wrote: n.writes.add,
		Decoded: n.writes.changes.decode})
	if err != nil {
		return nil, errors.Join(err, pins.Close())
	}
	return n, nil
}

func (n *node) dir() string { return n.pins.Dir("kubeveil") }

// Close closes the table and removes it.
func (n *node) Close() error { return errors.Join(n.Veild.Close(), n.pins.Close()) }

// ours measures veild's client, planner and writer: from the request for the lists until each
// frontend of the endpoints is written. If the server is a feed, whose shape is then not nil, it
// measures single changes after that. It writes a profile of the list, unless its path is empty.
func ours(ctx context.Context, w want, config, profile string,
	feed *apifeed.Shape) (f figures, err error) {
	node, err := openNode(config, w.frontends)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, node.Close()) }()
	if f.Empty, err = load.MapsMiB(); err != nil {
		return f, err
	}

	ctx, end := context.WithCancel(ctx)
	var ended sync.WaitGroup
	defer ended.Wait()
	defer end()
	stop, err := startProfile(profile)
	if err != nil {
		return f, err
	}
	began, before := time.Now(), load.OwnCPU()
	ended.Go(func() { node.Run(ctx) })
	last, err := node.writes.wait(ctx)
	if err != nil {
		return f, err
	}
	f.Processor = bench.Millis(load.OwnCPU() - before)
	if err := stop(); err != nil {
		return f, err
	}
	f.Wall, f.Usable = bench.Millis(last.Sub(began)), bench.Millis(last.Sub(node.Listed()))

	if f.Peak, err = load.PeakMiB(os.Getpid()); err != nil {
		return f, err
	}
	if f.Maps, err = load.MapsMiB(); err != nil {
		return f, err
	}
	f.Heap = heap()
	if err := errors.Join(node.Problems(ctx), complete(node.dir(), w)); err != nil || feed == nil {
		return f, err
	}
	if f.Change, f.ChangeMost, err = node.writes.changes.measure(ctx, config, *feed); err != nil {
		return f, err
	}
	err = node.storm(ctx, *feed, config, &f)
	return f, err
}

// startProfile writes a CPU profile to a file until stop is called. It does nothing if path is
// empty.
func startProfile(path string) (stop func() error, err error) {
	if path == "" {
		return func() error { return nil }, nil
	}
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return file.Close()
	}, nil
}

// writes waits for the writes of some frontends, and passes on those after them.
type writes struct {
	changes changes

	mu      sync.Mutex
	missing int
	last    time.Time
	err     error
	done    chan struct{}
}

// newWrites returns writes that expect n frontends.
func newWrites(n int) *writes {
	return &writes{changes: changes{took: make(chan time.Duration, 1)}, missing: n,
		done: make(chan struct{})}
}

// expect makes the next wait return after the writes of n more frontends. Call it after wait.
func (w *writes) expect(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.missing, w.done = n, make(chan struct{})
}

func (w *writes) add(wr servicenode.Write) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last, w.err = wr.At, errors.Join(w.err, wr.Err)
	if w.missing <= 0 {
		w.changes.wrote(wr)
		return
	}
	w.missing -= wr.Frontends
	if w.missing <= 0 || w.err != nil {
		close(w.done)
		w.missing = 0
	}
}

// wait returns the time of the last write.
func (w *writes) wait(ctx context.Context) (time.Time, error) {
	w.mu.Lock()
	done := w.done
	w.mu.Unlock()
	select {
	case <-done:
	case <-ctx.Done():
		return time.Time{}, context.Cause(ctx)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last, w.err
}

// lastWrite returns the time of the last write.
func (w *writes) lastWrite() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}

// complete returns an error unless the maps in dir have what is wanted, each endpoint once.
func complete(dir string, w want) error {
	c, err := servicenode.Read(dir)
	if err != nil {
		return err
	}
	seen := 0
	for _, backends := range c.Backends {
		for i, b := range backends {
			if i == 0 || b != backends[i-1] {
				seen++
			}
		}
	}
	if got := (want{len(c.Backends), seen}); got != w {
		return fmt.Errorf("%d frontends and %d endpoints are written, want %d and %d",
			got.frontends, got.endpoints, w.frontends, w.endpoints)
	}
	return nil
}

// heap returns the size of the heap after a collection, in MiB.
func heap() float64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // a sweep may still have run during the first
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / (1 << 20)
}
