package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/agent/plan"
	"github.com/kubeveil/kubeveil/pkg/agent/podkeeper"
	"github.com/kubeveil/kubeveil/pkg/feature"
	"github.com/kubeveil/kubeveil/pkg/guard"
	"github.com/kubeveil/kubeveil/pkg/hostnet"
	"github.com/kubeveil/kubeveil/pkg/node"
	"github.com/kubeveil/kubeveil/pkg/pathmtu"
	"github.com/kubeveil/kubeveil/pkg/pod"
	"github.com/kubeveil/kubeveil/pkg/reach"
	"github.com/kubeveil/kubeveil/pkg/source"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
	"github.com/kubeveil/kubeveil/pkg/telemetry/admin"
	"github.com/kubeveil/kubeveil/pkg/telemetry/health"
	"github.com/kubeveil/kubeveil/pkg/tunnel"
	"github.com/kubeveil/kubeveil/pkg/tunnel/wgdevice"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// New returns the agent of this node. It first does all checks that change nothing, of the machine,
// the source and the tunnels, and returns all their errors together. Then it opens the key and the
// last good table, and returns their errors together. Last it opens the guard, the routing and the
// features.
func New(o Dependencies) (*Agent, error) {
	a := &Agent{
		log: o.Log, version: o.Version, started: time.Now(), reload: o.Reload,
		health: health.New(loopLimit, stepGuard, stepApply),
		wake:   make(chan struct{}, 1),
		kernel: kernelChanges{told: make(chan struct{}, 1)},
	}
	a.view.Store(&view{news: news{cfg: o.Config, pathMTU: map[string]int{}}})
	a.showGuard = a.guardStatus
	a.metrics = telemetry.NewMetrics(a.Status, o.Config.MetricsPeers)
	a.pods = podkeeper.New(pod.DefaultPaths(), resync, retry, o.Log, a.metrics.ObserveAdd)

	// Read-only checks come first, so that an unfit machine is not changed and gets no key.
	if err := errors.Join(node.Check(o.Config), a.openSource(), a.openTunnels()); err != nil {
		return nil, err
	}
	if err := errors.Join(a.openKey(), a.openTable()); err != nil {
		return nil, err
	}
	if last := a.view.Load().lastGood; a.kube != nil && last != nil {
		a.kube.Recall(*last)
	}

	// Listen before the guard is opened, because listening fails if another veild runs on the node.
	if err := a.listen(); err != nil {
		return nil, err
	}
	var err error
	if a.guard, err = guard.Open(abi.BPFDir, o.Log); err != nil {
		return nil, errors.Join(err, a.closeListeners())
	}
	if a.host, err = hostnet.Open(); err != nil {
		return nil, errors.Join(err, a.guard.Close(), a.closeListeners())
	}

	if err := a.openFeatures(); err != nil {
		a.host.Close()
		return nil, errors.Join(err, a.guard.Close(), a.closeListeners())
	}
	return a, nil
}

func (a *Agent) openKey() error {
	if err := os.MkdirAll(abi.RunDir, 0o700); err != nil {
		return fmt.Errorf("make %s: %w", abi.RunDir, err)
	}
	cfg := a.config()
	key, created, err := wgkey.LoadOrCreate(cfg.KeyFile, cfg.TrustDisk)
	if err != nil {
		return err
	}
	if created {
		a.log.Info("made a private key", "file", cfg.KeyFile, "public", key.Public())
	}
	a.key = key
	a.keyMade, err = keyMade(cfg.KeyFile)
	return err
}

func (a *Agent) openTable() (err error) {
	cfg := a.config()
	if a.table, err = source.NewWriter(cfg.SnapshotFile, cfg.TrustDisk); err != nil {
		return err
	}
	last, err := source.Read(cfg.SnapshotFile, cfg.TrustDisk)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case errors.Is(err, source.ErrCorrupt):
		// A new table can be written then. Until the source has sent a state, the kernel keeps its
		// peers and closed addresses.
		aside, moveErr := source.MoveAside(cfg.SnapshotFile)
		if moveErr != nil {
			return errors.Join(err, moveErr)
		}
		a.log.Warn("the last good table is corrupt and not used: inspect the moved file, then "+
			"delete it", "moved", aside, "error", err)
	case err != nil:
		return err
	default:
		a.change(func(v *view) { v.lastGood = &last })
	}
	return nil
}

func (a *Agent) openSource() (err error) {
	a.source, a.kube, err = node.NewSource(a.config(), a.log)
	return err
}

func (a *Agent) openTunnels() error {
	mode := wgdevice.Mode(a.config().Tunnel.Mode)
	h, err := wgdevice.NewHost(wgdevice.HostConfig{Mode: mode, Log: a.log})
	if err != nil {
		return err
	}
	a.tunnels = tunnel.NewManager(h, time.Now)
	return nil
}

// Run keeps the kernel as the table requires until ctx ends. Tunnels, guard, routes and the CNI
// configuration stay in force after that.
func (a *Agent) Run(ctx context.Context) error {
	defer a.guard.Close()
	defer a.host.Close()
	l := &loop{Agent: a, outcome: a.view.Load().outcome, key: a.key,
		clock: clock{now: systemClock, latest: a.keyMade}}
	err := l.guardFirst()
	if err == nil {
		err = a.beginFeatures()
	}
	if err != nil {
		return errors.Join(err, a.closeListeners())
	}

	g, ctx := errgroup.WithContext(ctx)
	a.serve(ctx, g)
	g.Go(func() error { return a.guard.Watch(ctx, a.poke) })
	g.Go(func() error { return a.watchKernel(ctx) })
	g.Go(func() error { return a.pods.Run(ctx) })
	g.Go(func() error { return a.watchConfig(ctx) })
	g.Go(func() error { return a.watchPeers(ctx) })
	g.Go(func() error { return a.watchOtherCNI(ctx, a.config().CNI.ConfDir) })
	g.Go(func() error { return a.watchDrops(ctx) })
	a.runFeatures(ctx, g)
	l.probes = probes{ctx: ctx, run: g.Go, log: a.log, found: a.foundMTU,
		traffic: a.peerTraffic, broken: func(p pathmtu.Peer) {
			g.Go(func() error { a.sendSingly(ctx, p); return nil })
		}}
	l.reaches = reaches{ctx: ctx, run: g.Go, config: reach.Config{Read: a.readPeers,
		Heard: a.peerHeard, Changed: a.poke, Log: a.log}}
	g.Go(func() error { return feature.IgnoreEnd(ctx, a.source.Run(ctx, a.yield)) })
	g.Go(func() error { return l.run(ctx) })
	err = feature.IgnoreEnd(ctx, g.Wait())
	return errors.Join(err, a.closeFeatures())
}

// guardFirst puts the guard in force before the source has sent a state. It uses the configuration
// and the last good table, and keeps the node addresses that the guard already has.
func (l *loop) guardFirst() error {
	have, err := l.guard.Read()
	if err != nil {
		return err
	}
	in := plan.Inputs{Config: l.config(), VIPs: l.closedByFeatures()}
	if l.lastGood != nil {
		in.Table.ServiceRanges = l.lastGood.ServiceRanges
	}
	s := plan.Decide(in).Guard
	s.NodeAddrs = have.Nodes
	if l.lastGood != nil {
		s.NodeAddrs = slices.Concat(s.NodeAddrs, l.lastGood.NodeAddrs)
	}
	if _, err = l.guard.Apply(s); err != nil {
		return fmt.Errorf("put the guard in force: %w", err)
	}
	if len(l.guard.Unguarded()) == 0 {
		l.health.Done(stepGuard)
	}
	return nil
}

// listen opens the admin socket, and the metrics socket if an address is configured.
func (a *Agent) listen() (err error) {
	if a.adminSocket, err = admin.Listen(abi.AdminSocket); err != nil {
		return err
	}
	address := a.config().MetricsAddress
	if address == "" {
		return nil
	}
	if a.metricsSocket, err = telemetry.ListenMetrics(address); err != nil {
		return errors.Join(err, a.closeListeners())
	}
	return nil
}

// closeListeners closes the listeners of a veild that ends before it serves.
func (a *Agent) closeListeners() error {
	err := a.adminSocket.Close()
	if a.metricsSocket != nil {
		err = errors.Join(err, a.metricsSocket.Close())
	}
	return err
}

// serve serves the listeners until ctx ends.
func (a *Agent) serve(ctx context.Context, g *errgroup.Group) {
	g.Go(func() error {
		return telemetry.Serve(ctx, a.adminSocket,
			admin.Handler(a.Status, a.health, a.pages()), a.log)
	})
	if a.metricsSocket != nil {
		g.Go(func() error {
			return telemetry.Serve(ctx, a.metricsSocket, telemetry.MetricsHandler(a.metrics,
				a.health, a.config().ClusterRanges), a.log)
		})
	}
}
