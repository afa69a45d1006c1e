package service

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench/service/peer"
	"github.com/kubeveil/kubeveil/e2e/scale/servicenode"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
)

// watched is a table that veild's own packages maintain: the client reads a feed, and the keeper
// plans and writes the table.
type watched struct {
	feed *peer.Feed
	node *servicenode.Veild
	// writes receives each write of the table, in order.
	writes chan servicenode.Write
	end    func()
	ended  sync.WaitGroup
}

// newWatched makes a table with the default limits, pinned in dir, and starts the packages that
// maintain it. config is the path of the kubeconfig that it writes. The caller must close the
// result also after an error.
func newWatched(ctx context.Context, dir, config string,
	plan []peer.Object) (w *watched, err error) {
	w = &watched{writes: make(chan servicenode.Write, 2*oursChanges), end: func() {}}
	if w.feed, err = peer.NewFeed(nodeAddr(0), plan); err != nil {
		return w, err
	}
	if err := w.feed.WriteConfig(config); err != nil {
		return w, err
	}
	w.node, err = servicenode.Open(servicenode.Config{Name: peer.NodeName, Kubeconfig: config,
		Dir: dir, Limits: service.DefaultLimits,
		Wrote: func(wr servicenode.Write) { w.writes <- wr }})
	if err != nil {
		return w, err
	}

	ctx, w.end = context.WithCancel(ctx)
	w.ended.Go(func() { w.node.Run(ctx) })
	return w, nil
}

// close ends the client, the keeper and the feed, and removes the table, which is pinned in dir.
func (w *watched) close(dir string) error {
	w.end()
	if w.feed != nil {
		w.feed.Close()
	}
	w.ended.Wait()
	if w.node == nil {
		return nil
	}
	_, err := bpfmaps.Remove(dir)
	return errors.Join(err, w.node.Close())
}

// next waits for the next write of the table, at most writeLimit.
func (w *watched) next(ctx context.Context) (servicenode.Write, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, writeLimit,
		errors.New("the table was not written"))
	defer cancel()
	select {
	case wr := <-w.writes:
		return wr, wr.Err
	case <-ctx.Done():
		return servicenode.Write{}, context.Cause(ctx)
	}
}

// writeLimit bounds the wait for the next write of the table.
const writeLimit = time.Minute

// folder returns the folder for the pins, and the path of the kubeconfig, of a round.
func (s *run) folder(name string) (pins, config string) {
	return s.ground.pins.Dir(name), filepath.Join(s.ground.dir, name+".kubeconfig")
}
