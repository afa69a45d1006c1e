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
	// again is the delay before a failed request to the API server is retried.
	again = 5 * time.Second
	// yieldEvery is the interval of checks for volumes that other nodes took over from this node.
	yieldEvery = time.Second
	// recordsEvery is the interval of reads of the records on mapped disks. The records show
	// whether another node has opened the disk.
	recordsEvery = 5 * time.Second
	// wipeEvery is the interval of checks for disks of deleted volumes to overwrite.
	wipeEvery = time.Minute
	// unusedEvery is the interval of checks for open volumes that no pod uses.
	unusedEvery = time.Minute
)

// every calls do in a goroutine of g, now and after each interval, until ctx ends. what describes
// do in logs.
func (p *process) every(ctx context.Context, g *errgroup.Group, interval time.Duration, what string,
	do func(context.Context) error) {
	g.Go(func() error {
		p.driver.Every(ctx, interval, what, do)
		return nil
	})
}

// until calls do in a goroutine of g, now and after each interval, until do returns nil or ctx
// ends.
func (p *process) until(ctx context.Context, g *errgroup.Group, interval time.Duration, what string,
	do func(context.Context) error) {
	g.Go(func() error {
		p.driver.Until(ctx, interval, what, do)
		return nil
	})
}

// alone starts the work that does not need the API server, until ctx ends. It may be called before
// the API server has answered.
func (p *process) alone(ctx context.Context, g *errgroup.Group) {
	p.until(ctx, g, again, "resume mappings that an earlier process marked and left suspended",
		p.driver.ResumeMarked)
	p.every(ctx, g, recordsEvery, "read the records of disks that are mapped",
		func(ctx context.Context) error { return p.metrics.CheckDisks(ctx, p.driver) })
	if p.options.metrics != "" {
		g.Go(func() error { return p.serveMetrics(ctx) })
	}
}

// upkeep starts the background work that needs the API server, until ctx ends.
func (p *process) upkeep(ctx context.Context, g *errgroup.Group) {
	d, s := p.driver, p.states
	// Recover repeats while the driver serves, because it may succeed only after a served call.
	p.until(ctx, g, again, "resume mappings that an earlier process left suspended", d.Recover)
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

// requests executes the requests of users. A request that fails stays, and its error is returned.
func requests(ctx context.Context, d *driver.Driver, s states, log *slog.Logger) error {
	asked, err := s.cache.Rewraps(ctx)
	errs := []error{err}
	for id, request := range asked {
		changed, err := d.RewrapVolume(ctx, id)
		if err == nil {
			log.Info("request to rewrap a key is done", "volume", id, "changed", changed)
			err = s.done(ctx, id, request)
		}
		errs = append(errs, err)
	}

	unowned, err := s.cache.Destroys(ctx)
	errs = append(errs, err)
	for _, id := range unowned {
		err := s.destroy(ctx, id, d.Destroy)
		if err == nil {
			log.Info("volume without an owner destroyed, as requested", "volume", id)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
