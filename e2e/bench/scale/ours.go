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
	"github.com/kubeveil/kubeveil/pkg/service"
)

// ours measures veild's client, planner and writer: from the request for the lists until each
// frontend of the endpoints is written, and then single changes. It writes a profile of the first,
// unless its path is empty.
func ours(ctx context.Context, shape apifeed.Shape, config,
	profile string) (f figures, err error) {
	pins, err := bpffs.New()
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, pins.Close()) }()

	w := &writes{missing: shape.Services(), done: make(chan struct{})}
	w.changes.took = make(chan time.Duration, 1)
	dir := pins.Dir("kubeveil")
	node, err := servicenode.Open(servicenode.Config{Name: apifeed.Node, Kubeconfig: config,
		Dir: dir, Limits: service.DefaultLimits, Wrote: w.add, Decoded: w.changes.decode})
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, node.Close()) }()
	if f.Empty, err = memoryOfMaps(); err != nil {
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
	began, before := time.Now(), processor()
	ended.Go(func() { node.Run(ctx) })
	select {
	case <-w.done:
	case <-ctx.Done():
		return f, context.Cause(ctx)
	}
	f.Processor = bench.Millis(processor() - before)
	if err := stop(); err != nil {
		return f, err
	}
	f.Wall, f.Usable = bench.Millis(w.last.Sub(began)), bench.Millis(w.last.Sub(node.Listed()))

	if f.Peak, err = peak(); err != nil {
		return f, err
	}
	if f.Maps, err = memoryOfMaps(); err != nil {
		return f, err
	}
	f.Heap = heap()
	if err := errors.Join(w.err, node.Problems(ctx), complete(dir, shape)); err != nil {
		return f, err
	}
	err = w.changes.measure(ctx, config, &f)
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

// writes waits for the writes of all frontends, and passes on those after them.
type writes struct {
	changes changes
	missing int
	last    time.Time
	err     error
	done    chan struct{}
}

func (w *writes) add(wr servicenode.Write) {
	if w.missing <= 0 {
		if wr.Frontends > 0 {
			w.changes.wrote(wr.At)
		}
		return
	}
	w.missing -= wr.Frontends
	w.last, w.err = wr.At, errors.Join(w.err, wr.Err)
	if w.missing <= 0 || w.err != nil {
		close(w.done)
		w.missing = 0
	}
}

// complete returns an error unless the maps in dir have the endpoints of a shape, each in the
// service that it belongs to.
func complete(dir string, shape apifeed.Shape) error {
	c, err := servicenode.Read(dir)
	if err != nil {
		return err
	}
	if len(c.Backends) != shape.Services() {
		return fmt.Errorf("%d frontends, want %d", len(c.Backends), shape.Services())
	}
	seen := 0
	for k, backends := range c.Backends {
		for i, b := range backends {
			if i == 0 || b != backends[i-1] {
				seen++
			}
		}
		if len(backends) == 0 {
			return fmt.Errorf("frontend %v has no backends", k.AddrPort())
		}
	}
	if seen != shape.Endpoints {
		return fmt.Errorf("%d endpoints are written, want %d", seen, shape.Endpoints)
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
