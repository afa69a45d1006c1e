package service

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench/service/peer"
	"github.com/kubeveil/kubeveil/pkg/kube"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
	"github.com/kubeveil/kubeveil/pkg/service/keeper"
)

// watched is a table that is kept as veild keeps it: its client reads a feed, its keeper plans and
// writes.
type watched struct {
	feed   *peer.Feed
	table  *bpfmaps.Table
	keeper *keeper.Keeper
	// writes holds the writes, in their order.
	writes chan written
	// listed is the time at which the lists were decoded.
	listed time.Time
	end    func()
	ended  sync.WaitGroup
}

// written is one round of writes.
type written struct {
	// at is the time of its end, took its duration.
	at   time.Time
	took time.Duration
	// entries is the number of all entries, fronts the number of frontends.
	entries, fronts int
	err             error
}

// newWatched begins to keep a table of the default sizes, pinned in dir; config is a file for its
// credentials. It is to be closed also after an error.
func newWatched(ctx context.Context, dir, config string,
	plan []peer.Object) (w *watched, err error) {
	w = &watched{writes: make(chan written, 2*oursChanges), end: func() {}}
	if w.table, err = openTable(bpfmaps.Config{Dir: dir, Limits: service.DefaultLimits}); err != nil {
		return w, err
	}
	if w.feed, err = peer.NewFeed(nodeAddr(0), plan); err != nil {
		return w, err
	}
	if err := w.feed.WriteConfig(config); err != nil {
		return w, err
	}
	client, err := kube.New(kube.ClientConfig{Node: peer.NodeName, Kubeconfig: config})
	if err != nil {
		return w, err
	}

	if w.keeper, err = keeper.New(keeper.ServiceConfig{Node: peer.NodeName,
		Limits: service.DefaultLimits, Table: timed{w.table, w.writes}}); err != nil {
		return w, err
	}
	if err := w.keeper.Begin(); err != nil {
		return w, err
	}

	w.keeper.SetNodeAddrs(nil)
	ctx, w.end = context.WithCancel(ctx)
	w.ended.Go(func() { w.keeper.Run(ctx) })
	// It returns the error of ctx.
	w.ended.Go(func() {
		_ = client.RunServices(ctx, service.DefaultLimits, sink{w.keeper, &w.listed})
	})
	return w, nil
}

// close ends what keeps the table and takes the table away.
func (w *watched) close(dir string) error {
	w.end()
	if w.feed != nil {
		w.feed.Close()
	}
	w.ended.Wait()
	if w.table == nil {
		return nil
	}
	_, err := bpfmaps.Remove(dir)
	return errors.Join(err, w.table.Close())
}

// next waits for the next writes.
func (w *watched) next(ctx context.Context) (written, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, writeLimit,
		errors.New("the table was not written"))
	defer cancel()
	select {
	case wr := <-w.writes:
		return wr, wr.err
	case <-ctx.Done():
		return written{}, context.Cause(ctx)
	}
}

// writeLimit is the time after which no further write is expected.
const writeLimit = time.Minute

// problems returns the problems of the services.
func (w *watched) problems(ctx context.Context) error {
	var all []error
	err := w.keeper.Ask(ctx, func(p *service.Planner) { all = p.Problems() })
	return errors.Join(append(all, err)...)
}

// sink is a keeper that notes when everything had been put.
type sink struct {
	*keeper.Keeper
	listed *time.Time
}

// Listed notes the time.
func (s sink) Listed() {
	*s.listed = time.Now()
	s.Keeper.Listed()
}

// timed is a table that reports each write. Its programs are attached nowhere.
type timed struct {
	*bpfmaps.Table
	writes chan<- written
}

// Attach does nothing.
func (t timed) Attach() error { return nil }

// Apply writes and reports the write.
func (t timed) Apply(c service.Changes) error {
	start := time.Now()
	err := t.Table.Apply(c)
	at := time.Now()
	t.writes <- written{at, at.Sub(start), c.Writes(), len(c.Frontends.Keys), err}
	return err
}

// folder returns the paths for the table and the credentials of a round.
func (s *run) folder(name string) (pins, config string) {
	return s.ground.pins.Dir(name), filepath.Join(s.ground.dir, name+".kubeconfig")
}
