package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"

	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/driver"
	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/internal/commandline"
	"github.com/kubeveil/kubeveil/pkg/version"
)

// process is a driver and its background work. Use newProcess.
type process struct {
	*options
	driver       *driver.Driver
	states       states
	registration *driver.Registration
	registry     *prometheus.Registry
	metrics      *driver.Metrics
	warner       *warner
	log          *slog.Logger
	// joined reports whether the API server has answered, so that the driver serves calls.
	joined atomic.Bool
}

func newProcess(o *options, d *driver.Driver, s states, log *slog.Logger) *process {
	p := &process{options: o, driver: d, states: s, log: log, registry: prometheus.NewRegistry(),
		registration: &driver.Registration{Endpoint: o.endpoint, Log: log}}
	p.registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	p.metrics = driver.NewMetrics(d, p.registration.Registered, p.registry)
	p.warner = newWarner(p.warn, log)
	d.Notify(func(n driver.Notice) {
		p.metrics.Notice(n)
		p.warner.notice(n)
	})
	return p
}

// warn creates an event for the claim of a volume. name is the volume, or a mapping of the volume.
func (p *process) warn(ctx context.Context, name, reason, message string) error {
	id, err := p.driver.VolumeOf(ctx, name)
	if err != nil {
		return err
	}
	return p.states.warn(ctx, id, reason, message)
}

// serve runs the driver until ctx ends. It first resumes or fences mappings, without the API
// server: an earlier process may have left a mapping suspended, and a pod may write to a disk that
// another node has taken over.
func (o *options) serve(ctx context.Context) error {
	log, err := commandline.NewLogger(os.Stderr, o.logLevel, o.logFormat)
	if err != nil {
		return err
	}
	fenced := o.resume(ctx, log)

	s, err := o.open(log)
	if err != nil {
		return err
	}
	sets, err := o.sets(s, log)
	if err != nil {
		return err
	}
	keys, err := o.keys()
	if err != nil {
		return err
	}

	d, err := driver.New(driver.Config{
		Node: o.node, Version: version.String(), Sets: sets, Keys: keys, TakeOver: s.takeOver,
		Mounts: o.mountSystem(), Cache: s.reader(),
		PrivateMounts: o.privateMounts || o.registration == "", Log: log,
	})
	if err != nil {
		return err
	}

	p := newProcess(o, d, s, log)
	for _, id := range fenced {
		d.Happened(id, volume.Fenced)
	}
	g, ctx := errgroup.WithContext(ctx)
	p.alone(ctx, g)
	g.Go(func() error { return p.join(ctx, g) })
	return g.Wait()
}

// resume tries once to resume the mappings that an earlier process marked before it suspended
// them. It returns the volumes that it fenced instead. It needs neither keys nor a store, so it
// works even if the rest of the start fails. alone retries after an error.
func (o *options) resume(ctx context.Context, log *slog.Logger) (fenced []string) {
	happened := func(id string, h volume.Happening) {
		if h == volume.Fenced {
			fenced = append(fenced, id)
		}
	}
	set := o.newSet(volume.Config{Engine: dmcrypt.Kernel{}, Log: log, Happened: happened})
	if err := set.ResumeMarked(ctx); err != nil {
		log.Warn("some mappings that an earlier process left suspended could not be resumed", "error", err)
	}
	return fenced
}

// join waits for the API server, checks the machine and starts the servers.
func (p *process) join(ctx context.Context, g *errgroup.Group) error {
	cluster, err := p.states.clusterID(ctx, p.log)
	if err != nil {
		return err
	}
	for _, set := range p.driver.Sets {
		set.Cluster = cluster
	}

	// Do not register a machine that cannot open volumes. upkeep retries after any other error of
	// Recover while the driver serves.
	if err := p.driver.Recover(ctx); errors.Is(err, dmcrypt.ErrNotSupported) {
		return fmt.Errorf("node %s cannot open volumes: %w", p.node, err)
	}

	if p.options.registration != "" {
		if err := p.driver.CheckMounts(filepath.Dir(p.options.registration)); err != nil {
			return fmt.Errorf("node %s cannot mount volumes for pods: %w", p.node, err)
		}
	}

	p.log.Info("veil-csi starts", "version", version.String(), "node", p.node, "cluster", cluster,
		"endpoint", p.endpoint, "defaults", p.driver.Defaults.String())
	return p.servers(ctx, g)
}

// servers starts the CSI server, the registration, the events and the upkeep in g, until ctx ends.
func (p *process) servers(ctx context.Context, g *errgroup.Group) error {
	if err := os.MkdirAll(filepath.Dir(p.endpoint), 0o750); err != nil {
		return err
	}
	l, err := driver.Listen(p.endpoint)
	if err != nil {
		return err
	}

	p.joined.Store(true)
	observe := p.metrics.Observe
	if p.states.warn != nil {
		observe = func(c driver.Call) {
			p.metrics.Observe(c)
			p.warner.observe(c)
		}
		g.Go(func() error {
			p.warner.run(ctx)
			return nil
		})
	}

	g.Go(func() error {
		server := driver.NewServer(p.log, observe)
		p.driver.Register(server)
		// Resume suspended sources before Serve waits for calls, which may never end.
		defer context.AfterFunc(ctx, p.driver.End)()
		defer p.log.Info("veil-csi ends; what is mounted stays")
		return driver.Serve(ctx, server, l)
	})
	if p.options.registration != "" {
		g.Go(func() error { return p.registration.Serve(ctx, p.options.registration) })
	}
	p.upkeep(ctx, g)
	return nil
}
