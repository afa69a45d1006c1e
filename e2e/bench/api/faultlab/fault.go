package faultlab

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench/api/client"
	"github.com/kubeveil/kubeveil/e2e/lab"
)

// servedWithin bounds the wait of clients. It is longer than 45 s, after which client-go detects a
// dead connection without help of veild.
const servedWithin = 75 * time.Second

// Event begins or ends a fault, and returns the time from which clients wait.
type Event func(*Lab, context.Context) (time.Time, error)

// Suffer causes a fault while clients hold connections. It returns the longest wait of each kind of
// client in milliseconds, and the sum of the clients' tallies. end repairs the fault before Suffer
// returns.
func (b *Lab) Suffer(ctx context.Context, begin, end Event) (took map[string]float64,
	sum client.Tally,
	err error) {
	if err := b.Good(ctx); err != nil {
		return nil, sum, err
	}
	if err := b.start(ctx, "hold"); err != nil {
		return nil, sum, err
	}

	since, err := begin(b, ctx)
	defer func() {
		_, e := end(b, context.WithoutCancel(ctx))
		err = errors.Join(err, e)
	}()
	if err != nil {
		return nil, sum, err
	}
	return b.served(ctx, since)
}

// server returns the server that fails.
func (b *Lab) server() *lab.Server { return b.Cluster.Control.Servers[failing] }

// host returns the host of the server that fails.
func (b *Lab) host() *lab.Host { return b.Cluster.Control.Servers[failing].Host }

// Unplug simulates a power failure of the second server.
func (b *Lab) Unplug(ctx context.Context) (time.Time, error) {
	since := time.Now()
	return since, errors.Join(b.server().Unplug(ctx, true), b.Mark())
}

// Plug restores the power of all servers, beginning with the first.
func (b *Lab) Plug(ctx context.Context) (time.Time, error) {
	since := time.Now()
	var errs []error
	for _, s := range b.Cluster.Control.Servers {
		errs = append(errs, s.Unplug(ctx, false))
	}
	return since, errors.Join(errs...)
}

// Blackhole drops all packets of the second server.
func (b *Lab) Blackhole(ctx context.Context) (time.Time, error) {
	since := time.Now()
	return since, errors.Join(b.host().Blackhole(ctx, true), b.Mark())
}

// Unblackhole ends Blackhole.
func (b *Lab) Unblackhole(ctx context.Context) (time.Time, error) {
	return time.Now(), b.host().Blackhole(ctx, false)
}

// Stop stops the process of the second server (SIGSTOP). Its kernel still acknowledges packets.
func (b *Lab) Stop(context.Context) (time.Time, error) {
	since := time.Now()
	return since, errors.Join(b.server().Process.Signal(syscall.SIGSTOP), b.Mark())
}

// Resume ends Stop.
func (b *Lab) Resume(context.Context) (time.Time, error) {
	return time.Now(), b.server().Process.Signal(syscall.SIGCONT)
}

// UnplugAll simulates a power failure of both servers and waits until veild has detected it. It
// then restores the power of the first server, which listens at once.
func (b *Lab) UnplugAll(ctx context.Context) (time.Time, error) {
	for _, s := range slices.Backward(b.Cluster.Control.Servers) {
		if err := s.Unplug(ctx, true); err != nil {
			return time.Time{}, err
		}
	}
	if err := errors.Join(b.Mark(), b.wait(ctx, 0)); err != nil {
		return time.Time{}, err
	}
	since := time.Now()
	return since, b.Cluster.Control.Servers[0].Unplug(ctx, false)
}
