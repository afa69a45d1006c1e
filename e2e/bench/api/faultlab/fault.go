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

// servedWithin is how long a client may wait: client-go by itself finds a dead connection after
// 45 s.
const servedWithin = 75 * time.Second

// Event begins or ends a fault, and returns since when clients wait.
type Event func(*Lab, context.Context) (time.Time, error)

// Suffer lets a fault happen to held clients, and returns for each kind how long the client waited
// that waited longest, milliseconds.
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

// server is the one that faults happen to.
func (b *Lab) server() *lab.Server { return b.Cluster.Control.Servers[failing] }

// host is where that one runs.
func (b *Lab) host() *lab.Host { return b.Cluster.Control.ServerHost(failing) }

// Unplug takes the power from the second server.
func (b *Lab) Unplug(ctx context.Context) (time.Time, error) {
	since := time.Now()
	return since, errors.Join(b.server().Unplug(ctx, true), b.Mark())
}

// Plug returns the power to all servers, to the first one first.
func (b *Lab) Plug(ctx context.Context) (time.Time, error) {
	since := time.Now()
	var errs []error
	for _, s := range b.Cluster.Control.Servers {
		errs = append(errs, s.Unplug(ctx, false))
	}
	return since, errors.Join(errs...)
}

// Blackhole loses packets of the second server.
func (b *Lab) Blackhole(ctx context.Context) (time.Time, error) {
	since := time.Now()
	return since, errors.Join(b.host().Blackhole(ctx, true), b.Mark())
}

// Unblackhole ends that.
func (b *Lab) Unblackhole(ctx context.Context) (time.Time, error) {
	return time.Now(), b.host().Blackhole(ctx, false)
}

// Stop stops the second server's process: its kernel goes on.
func (b *Lab) Stop(context.Context) (time.Time, error) {
	since := time.Now()
	return since, errors.Join(b.server().Process.Signal(syscall.SIGSTOP), b.Mark())
}

// Resume ends Stop.
func (b *Lab) Resume(context.Context) (time.Time, error) {
	return time.Now(), b.server().Process.Signal(syscall.SIGCONT)
}

// UnplugAll takes the power from both servers until veild has seen it, and returns it to the first,
// which listens at once.
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
