package service

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"github.com/kubeveil/kubeveil/bpf"
	"github.com/kubeveil/kubeveil/e2e/bench/service/peer"
	"github.com/kubeveil/kubeveil/internal/bpfobj"
	"github.com/kubeveil/kubeveil/pkg/kube"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
	"github.com/kubeveil/kubeveil/pkg/service/keeper"
)

// watched is a table that veild's own packages maintain: the client reads a feed, and the keeper
// plans and writes the table.
type watched struct {
	feed   *peer.Feed
	table  *bpfmaps.Table
	keeper *keeper.Keeper
	// writes receives each write of the table, in order.
	writes chan written
	// listed is the time at which the lists were decoded.
	listed time.Time
	end    func()
	ended  sync.WaitGroup
}

// written describes one write of the table.
type written struct {
	// at is the time at which the write ended. took is its duration.
	at   time.Time
	took time.Duration
	// entries is the number of written entries. fronts is the number of frontends among them.
	entries, fronts int
	err             error
}

// pinGuardMaps pins in dir, which it makes, the guard's maps that the programs at sockets use. No
// guard is open here.
func pinGuardMaps(dir string) error {
	if err := bpfobj.MakeDir(dir); err != nil {
		return err
	}
	spec, err := bpf.LoadServiceSocket()
	if err != nil {
		return err
	}
	for name, m := range spec.Maps {
		if strings.HasPrefix(name, bpfmaps.PinPrefix) || strings.HasPrefix(name, ".") {
			continue
		}
		made, err := ebpf.NewMap(m)
		if err != nil {
			return err
		}
		if err := errors.Join(made.Pin(filepath.Join(dir, name)), made.Close()); err != nil {
			return err
		}
	}
	return nil
}

// newWatched makes a table with the default limits, pinned in dir, and starts the packages that
// maintain it. config is the path of the kubeconfig that it writes. The caller must close the
// result also after an error.
func newWatched(ctx context.Context, dir, config string,
	plan []peer.Object) (w *watched, err error) {
	w = &watched{writes: make(chan written, 2*oursChanges), end: func() {}}
	if err := pinGuardMaps(dir); err != nil {
		return w, err
	}
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
	// RunServices returns only the error of ctx.
	w.ended.Go(func() {
		_ = client.RunServices(ctx, service.DefaultLimits, sink{w.keeper, &w.listed})
	})
	return w, nil
}

// close ends the client, the keeper and the feed, and removes the table, which is pinned in dir.
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

// next waits for the next write of the table, at most writeLimit.
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

// writeLimit bounds the wait for the next write of the table.
const writeLimit = time.Minute

// problems returns the planner's problems as one error, or nil.
func (w *watched) problems(ctx context.Context) error {
	var all []error
	err := w.keeper.Ask(ctx, func(p *service.Planner) { all = p.Problems() })
	return errors.Join(append(all, err)...)
}

// sink is a keeper that records the time at which all lists were decoded.
type sink struct {
	*keeper.Keeper
	listed *time.Time
}

// Listed records the time and calls the keeper's Listed.
func (s sink) Listed() {
	*s.listed = time.Now()
	s.Keeper.Listed()
}

// timed is a table that sends each write to a channel. Its programs are not attached.
type timed struct {
	*bpfmaps.Table
	writes chan<- written
}

// Attach does nothing.
func (t timed) Attach() error { return nil }

// Apply writes changes to the table, and sends a description of the write to writes.
func (t timed) Apply(c service.Changes) error {
	start := time.Now()
	err := t.Table.Apply(c)
	at := time.Now()
	t.writes <- written{at, at.Sub(start), c.Writes(), len(c.Frontends.Keys), err}
	return err
}

// folder returns the folder for the pins, and the path of the kubeconfig, of a round.
func (s *run) folder(name string) (pins, config string) {
	return s.ground.pins.Dir(name), filepath.Join(s.ground.dir, name+".kubeconfig")
}
