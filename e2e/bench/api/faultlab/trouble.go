package faultlab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/kubeveil/kubeveil/e2e/bench/nfqueue"
)

const (
	// troubleTime is the duration of Unready and of Slow.
	troubleTime = 30 * time.Second
	// slowBy is the delay of packets of a slow server.
	slowBy = 200 * time.Millisecond
	// A server that flaps is not ready for flapBad and then ready for flapGood, flaps times.
	flapBad, flapGood, flaps = time.Second, 5 * time.Second, 10
	// TroublesTake is the approximate duration of Unready, Slow and Flap together.
	TroublesTake = 3*troubleTime + flaps*(flapBad+flapGood)
)

// Bear calls run, which impairs the second server, while clients hold connections. It returns an
// error unless veild reports at least one of states meanwhile. closed is the number of closed
// connections: the larger of the number that clients lost and the number that veild closed. what is
// a text with both numbers and the states that veild reported.
func (b *Lab) Bear(ctx context.Context, states []string,
	run func(*Lab, context.Context) error) (closed int, what string, err error) {
	if err := b.Good(ctx); err != nil {
		return 0, "", err
	}
	if err := b.start(ctx, "hold"); err != nil {
		return 0, "", err
	}
	before, err := b.Closed(ctx)
	if err != nil {
		return 0, "", err
	}
	if err := b.Mark(); err != nil {
		return 0, "", err
	}

	seen, err := b.statesDuring(ctx, run)
	if err != nil {
		return 0, "", err
	}
	reported := strings.Join(slices.Sorted(maps.Keys(seen)), ", ")
	if !slices.ContainsFunc(states, func(state string) bool { return seen[state] }) {
		return 0, "", fmt.Errorf("veild reported states %s, want %s: it did not detect the fault",
			reported, strings.Join(states, " or "))
	}
	after, err := b.Closed(ctx)
	if err != nil {
		return 0, "", err
	}
	_, sum, err := b.served(ctx, time.Now())
	ended := 0
	for _, n := range sum.Closed {
		ended += n
	}
	return max(after-before, ended), fmt.Sprintf("veild reported %s and closed %d; clients lost %v",
		reported, after-before, sum.Closed), err
}

// statesDuring calls run and returns the states of the second server that veild reports meanwhile.
func (b *Lab) statesDuring(ctx context.Context,
	run func(*Lab, context.Context) error) (map[string]bool, error) {
	ended := make(chan error, 1)
	go func() { ended <- run(b, ctx) }()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	seen := map[string]bool{}
	for {
		select {
		case err := <-ended:
			return seen, err
		case <-tick.C:
			if state, err := b.state(ctx); err == nil && state != "" {
				seen[state] = true
			}
		}
	}
}

// Pause waits for d or until ctx is done.
func Pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// cut disconnects the second server from etcd for d.
func (b *Lab) cut(ctx context.Context, d time.Duration) error {
	err := b.host().CutEtcd(ctx, true)
	Pause(ctx, d)
	return errors.Join(err, b.host().CutEtcd(context.WithoutCancel(ctx), false))
}

// Unready makes the second server not ready for troubleTime.
func (b *Lab) Unready(ctx context.Context) error { return b.cut(ctx, troubleTime) }

// Flap makes the second server alternate between not ready and ready.
func (b *Lab) Flap(ctx context.Context) error {
	for range flaps {
		if err := b.cut(ctx, flapBad); err != nil {
			return err
		}
		Pause(ctx, flapGood)
	}
	return nil
}

// Slow delays the packets that the second server sends for troubleTime.
func (b *Lab) Slow(ctx context.Context) error {
	undo, err := delay(b.host().Do, slowBy)
	if err != nil {
		return err
	}
	Pause(ctx, troubleTime)
	return undo()
}

// delayQueue is the number of the NFQUEUE in which packets of a slow server wait.
const delayQueue = 101

// delay delays all IPv4 packets that processes of a namespace send. do must run its argument in
// that namespace. undo removes the delay. delay uses NFQUEUE, because not all kernels have netem.
func delay(do func(func() error) error, by time.Duration) (undo func() error, err error) {
	var q *nfqueue.Queue
	table := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: "kubeveil_bench_delay"}
	err = do(func() error {
		if q, err = nfqueue.Open(delayQueue, by); err != nil {
			return err
		}
		c, err := nftables.New()
		if err != nil {
			return err
		}

		c.AddTable(table)
		chain := c.AddChain(&nftables.Chain{Table: table, Name: "output",
			Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookOutput,
			Priority: nftables.ChainPriorityFilter})
		c.AddRule(&nftables.Rule{Table: table, Chain: chain,
			Exprs: []expr.Any{nfqueue.Target(delayQueue)}})
		return c.Flush()
	})

	undo = func() error {
		err := do(func() error {
			c, err := nftables.New()
			if err != nil {
				return err
			}
			c.DelTable(table)
			return c.Flush()
		})
		if q != nil {
			err = errors.Join(err, q.Close())
		}
		return err
	}
	if err != nil {
		return nil, errors.Join(err, undo())
	}
	return undo, nil
}

// Roll restarts the API servers one after the other, the first one last, with the flags of more in
// addition.
func (b *Lab) Roll(ctx context.Context, more ...string) error {
	for i := range slices.Backward(b.Cluster.Control.Servers) {
		flags := append(serverFlags(), more...)
		if err := b.Cluster.Control.ReplaceServer(ctx, i, flags...); err != nil {
			return fmt.Errorf("restart API server %d: %w", i+1, err)
		}
		if err := b.Good(ctx); err != nil {
			return fmt.Errorf("restart API server %d: %w", i+1, err)
		}
	}
	return nil
}
