package servicenode

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"

	"github.com/kubeveil/kubeveil/bpf"
	"github.com/kubeveil/kubeveil/internal/bpfobj"
	"github.com/kubeveil/kubeveil/pkg/kube"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
	"github.com/kubeveil/kubeveil/pkg/service/keeper"
	"github.com/kubeveil/kubeveil/pkg/service/planner"
)

// Config describes a Veild.
type Config struct {
	// Name is the name of the node in Kubernetes. Kubeconfig is the path of its credentials.
	Name, Kubeconfig string
	// Dir is the folder of the pins, in a BPF file system. Open makes it.
	Dir string
	// Limits are the sizes of the maps.
	Limits service.Limits
	// Wrote is called after each write of the maps, by one goroutine. Nil means that nothing is
	// called.
	Wrote func(Write)
	// Decoded is called when a slice is decoded, by any goroutine. Nil means that nothing is called.
	Decoded func(service.Slice)
}

// Write describes a write of the maps.
type Write struct {
	// At is the time at which the write ended. Took is its duration.
	At   time.Time
	Took time.Duration
	// Entries is the number of written entries. Frontends is the number of frontends among them.
	Entries, Frontends int
	// Keys are these frontends. They are valid only during the call of Wrote.
	Keys []service.FrontendKey
	Err  error
}

// Veild is the part of veild. Make it with Open, then call Run once. Close it after Run.
type Veild struct {
	config Config
	table  *bpfmaps.Table
	client *kube.Client
	keeper *keeper.Keeper
	listed atomic.Pointer[time.Time]
}

// Open adopts the maps of an earlier process in the folder of c, or makes them.
func Open(c Config) (*Veild, error) {
	if err := PinGuardMaps(c.Dir); err != nil {
		return nil, err
	}
	n := &Veild{config: c}
	var err error
	if n.table, err = bpfmaps.Open(bpfmaps.Config{Dir: c.Dir, Limits: c.Limits,
		Log: slog.New(slog.DiscardHandler)}); err != nil {
		return nil, err
	}
	if err := n.open(); err != nil {
		return nil, errors.Join(err, n.table.Close())
	}
	return n, nil
}

func (n *Veild) open() (err error) {
	c := n.config
	if n.client, err = kube.New(kube.ClientConfig{Node: c.Name,
		Kubeconfig: c.Kubeconfig}); err != nil {
		return err
	}
	if n.keeper, err = keeper.New(keeper.ServiceConfig{Node: c.Name, Limits: c.Limits,
		Table: timed{n.table, c.Wrote}}); err != nil {
		return err
	}
	if err := n.keeper.Begin(); err != nil {
		return err
	}
	n.keeper.SetNodeAddrs(nil)
	return nil
}

// Run keeps the maps equal to the API server until ctx ends.
func (n *Veild) Run(ctx context.Context) {
	var both sync.WaitGroup
	both.Go(func() { n.keeper.Run(ctx) })
	// RunServices returns only the error of ctx.
	_ = n.client.RunServices(ctx, n.config.Limits, sink{n.keeper, n})
	both.Wait()
}

// Close closes the maps. They stay in force.
func (n *Veild) Close() error { return n.table.Close() }

// Listed returns the time at which the lists were decoded, or the zero time before that.
func (n *Veild) Listed() time.Time {
	if at := n.listed.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// Problems returns the problems of the planner and of the client as one error, or nil. Call it
// while Run runs.
func (n *Veild) Problems(ctx context.Context) error {
	var all []error
	err := n.keeper.Ask(ctx, func(p *planner.Planner) { all = p.Problems() })
	for _, text := range n.client.Problems() {
		all = append(all, errors.New(text))
	}
	return errors.Join(append(all, err)...)
}

// PinGuardMaps pins in dir, which it makes, the guard's maps that the programs at sockets use,
// where no guard is open. Maps that are pinned already stay.
func PinGuardMaps(dir string) error {
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
		pin := filepath.Join(dir, name)
		if had, err := ebpf.LoadPinnedMap(pin, nil); err == nil {
			had.Close()
			continue
		}
		made, err := ebpf.NewMap(m)
		if err != nil {
			return err
		}
		if err := errors.Join(made.Pin(pin), made.Close()); err != nil {
			return err
		}
	}
	return nil
}

// sink is a keeper that records the time at which all lists were decoded.
type sink struct {
	*keeper.Keeper
	node *Veild
}

// Listed records the time and calls the keeper's Listed.
func (s sink) Listed() {
	now := time.Now()
	s.node.listed.Store(&now)
	s.Keeper.Listed()
}

// PutSlice calls Decoded and the keeper's PutSlice.
func (s sink) PutSlice(v service.Slice) {
	if f := s.node.config.Decoded; f != nil {
		f(v)
	}
	s.Keeper.PutSlice(v)
}

// timed is a table that reports each write. Its programs are not attached.
type timed struct {
	*bpfmaps.Table
	wrote func(Write)
}

// Attach does nothing.
func (t timed) Attach() error { return nil }

// Given returns the backends that sockets got for these frontends.
func (t timed) Given(frontends []netip.AddrPort) ([]netip.AddrPort, error) {
	return t.Table.Given(frontends)
}

// Apply writes changes to the table, and reports the write.
func (t timed) Apply(c service.Changes) error {
	start := time.Now()
	err := t.Table.Apply(c)
	if at := time.Now(); t.wrote != nil {
		t.wrote(Write{at, at.Sub(start), c.Writes(), len(c.Frontends.Keys), c.Frontends.Keys, err})
	}
	return err
}
