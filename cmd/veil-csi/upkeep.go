package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kubeveil/kubeveil/csi/backend"
	"github.com/kubeveil/kubeveil/csi/driver"
)

const (
	// again is the pause before the next request to an API server that is away.
	again = 5 * time.Second
	// yieldEvery is the interval of checks for volumes that other nodes took over from this one.
	yieldEvery = time.Second
	// recordsEvery is the interval of reads of the disks below mappings, which show whether another
	// node has opened them.
	recordsEvery = 5 * time.Second
	// wipeEvery is the interval of searches for disks of deleted volumes.
	wipeEvery = time.Minute
	// unusedEvery is the interval of searches for volumes that no pod uses.
	unusedEvery = time.Minute
)

// every starts do, now and after each interval, until ctx ends.
func (p *process) every(ctx context.Context, g *errgroup.Group, interval time.Duration, what string,
	do func(context.Context) error) {
	g.Go(func() error {
		p.driver.Every(ctx, interval, what, do)
		return nil
	})
}

// until starts do, now and after each interval, until it returns no error or ctx ends.
func (p *process) until(ctx context.Context, g *errgroup.Group, interval time.Duration, what string,
	do func(context.Context) error) {
	g.Go(func() error {
		p.driver.Until(ctx, interval, what, do)
		return nil
	})
}

// alone starts the work that needs no API server, until ctx ends. It begins before the first answer
// of the API server.
func (p *process) alone(ctx context.Context, g *errgroup.Group) {
	p.until(ctx, g, again, "resume what marks say that a process left suspended",
		p.driver.ResumeMarked)
	p.every(ctx, g, recordsEvery, "read the records of disks that are mapped",
		func(ctx context.Context) error { return p.metrics.CheckDisks(ctx, p.driver) })
	if p.options.metrics != "" {
		g.Go(func() error { return p.serveMetrics(ctx) })
	}
}

// upkeep starts the work beside serving that needs an API server, until ctx ends.
func (p *process) upkeep(ctx context.Context, g *errgroup.Group) {
	d, s := p.driver, p.states
	// This runs beside serving, and again until it succeeds: possibly only a served call mends what
	// it waits for.
	p.until(ctx, g, again, "resume what a process left suspended", d.Recover)
	p.every(ctx, g, yieldEvery, "fence what other nodes took over",
		func(ctx context.Context) error { return p.metrics.FenceLost(ctx, d) })

	p.every(ctx, g, unusedEvery, "look for volumes that no pod has",
		func(ctx context.Context) error { return p.metrics.CheckUnused(ctx, d) })

	for _, set := range d.Sets {
		if disks, ok := set.Backend.(*backend.Disks); ok {
			p.every(ctx, g, wipeEvery, "overwrite disks that deleted volumes left",
				func(ctx context.Context) error {
					wiped, err := disks.Wipe(ctx)
					for _, id := range wiped {
						p.log.Info("disk of a deleted volume overwritten: it is offered again",
							"disk", id)
					}
					return err
				})
		}
	}

	p.every(ctx, g, p.rewrapEvery, "wrap keys again",
		func(ctx context.Context) error { return p.metrics.Rewrap(ctx, d) })
	p.every(ctx, g, p.trimEvery, "tell disks of free blocks",
		func(ctx context.Context) error { return p.metrics.Trim(ctx, d) })
	if s.cache != nil {
		g.Go(func() error {
			s.cache.Run(ctx)
			return nil
		})
		p.every(ctx, g, p.requestsEvery, "do what veilctl volume asked for",
			func(ctx context.Context) error { return requests(ctx, d, s, p.log) })
	}
}

// requests carries out requests of people. A request that fails stays, and is reported.
func requests(ctx context.Context, d *driver.Driver, s states, log *slog.Logger) error {
	asked, err := s.cache.Rewraps(ctx)
	errs := []error{err}
	for id, request := range asked {
		changed, err := d.RewrapVolume(ctx, id)
		if err == nil {
			log.Info("key was asked to be rewrapped", "volume", id, "changed", changed)
			err = s.done(ctx, id, request)
		}
		errs = append(errs, err)
	}

	unowned, err := s.cache.Destroys(ctx)
	errs = append(errs, err)
	for _, id := range unowned {
		err := s.destroy(ctx, id, d.Destroy)
		if err == nil {
			log.Info("volume without an owner was asked to be destroyed, and is", "volume", id)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
