package api

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
	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/pkg/bench"
)

// suffixClosed marks the number of connections to good servers that were closed.
const suffixClosed = "_closed"

// trouble happens to an API server whose connections are well and must stay open.
type trouble struct {
	name, title string
	// states are the states of which veild must report at least one. Otherwise it has not noticed
	// the fault.
	states []string
	// run lets it happen to the second server, and takes it back.
	run func(*broken, context.Context) error
}

const (
	// troubleTime is how long a server is not ready, and how long it is slow.
	troubleTime = 30 * time.Second
	// slowBy is the delay that packets of a slow server have.
	slowBy = 200 * time.Millisecond
	// A server that flaps is not ready for flapBad and ready for flapGood, flaps times.
	flapBad, flapGood, flaps = time.Second, 5 * time.Second, 10
)

// A server without etcd may need longer to answer than veild waits for it: then it hangs.
var notReady = []string{"not_ready", "hangs"}

var troubles = []trouble{
	{"not_ready", "an API server is not ready for 30 s", notReady, (*broken).unready},
	{"slow", "packets of an API server take 200 ms longer, for 30 s", []string{"slow"},
		(*broken).slow},
	{"flapping", "an API server is not ready for 1 s and ready for 5 s, ten times", notReady,
		(*broken).flap},
}

func caseWell(t trouble) string { return partWell + "_" + t.name + suffixClosed }

// well counts connections that are closed while they are well.
func (s *run) well(ctx context.Context) error {
	return s.inLab(ctx, lab.IPv4, func(ctx context.Context, b *broken) error {
		return b.whileWritten(ctx, func(ctx context.Context) error {
			var errs []error
			for _, t := range troubles {
				closed, what, err := b.bear(ctx, t)
				if err != nil {
					s.Progress("%s: %v", t.name, err)
					errs = append(errs, fmt.Errorf("%s: %w", t.name, err))
					continue
				}
				s.Progress("%s: %d connections closed; %s", t.name, closed, what)
				s.Add(caseWell(t), "Connections closed that were well: "+t.title, bench.Count,
					float64(closed))
			}
			return errors.Join(errs...)
		})
	})
}

// bear applies trouble to a server of held clients. It returns how many connections were closed:
// the larger of the number that clients lost and the number that veild closed. what names the one
// that counts, and the states that veild reported.
func (b *broken) bear(ctx context.Context, t trouble) (closed int, what string, err error) {
	if err := b.good(ctx); err != nil {
		return 0, "", err
	}
	if err := b.start(ctx, "hold"); err != nil {
		return 0, "", err
	}
	before, err := b.closed(ctx)
	if err != nil {
		return 0, "", err
	}
	if err := b.mark(); err != nil {
		return 0, "", err
	}

	seen, err := b.statesDuring(ctx, t)
	if err != nil {
		return 0, "", err
	}
	states := strings.Join(slices.Sorted(maps.Keys(seen)), ", ")
	if !slices.ContainsFunc(t.states, func(state string) bool { return seen[state] }) {
		return 0, "", fmt.Errorf("veild reported %s, want %s: it did not see the trouble", states,
			strings.Join(t.states, " or "))
	}
	after, err := b.closed(ctx)
	if err != nil {
		return 0, "", err
	}
	_, sum, err := b.served(ctx, time.Now())
	ended := 0
	for _, n := range sum.Closed {
		ended += n
	}
	return max(after-before, ended), fmt.Sprintf("veild reported %s and closed %d; clients lost %v",
		states, after-before, sum.Closed), err
}

// statesDuring returns which states veild reports of the second server during some trouble.
func (b *broken) statesDuring(ctx context.Context, t trouble) (map[string]bool, error) {
	ended := make(chan error, 1)
	go func() { ended <- t.run(b, ctx) }()
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

// pause waits, or less if ctx is done.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// cut takes etcd from the second server for a time.
func (b *broken) cut(ctx context.Context, d time.Duration) error {
	err := b.host().CutEtcd(ctx, true)
	pause(ctx, d)
	return errors.Join(err, b.host().CutEtcd(context.WithoutCancel(ctx), false))
}

func (b *broken) unready(ctx context.Context) error { return b.cut(ctx, troubleTime) }

func (b *broken) flap(ctx context.Context) error {
	for range flaps {
		if err := b.cut(ctx, flapBad); err != nil {
			return err
		}
		pause(ctx, flapGood)
	}
	return nil
}

// slow delays what the second server sends.
func (b *broken) slow(ctx context.Context) error {
	undo, err := delay(b.host().Do, slowBy)
	if err != nil {
		return err
	}
	pause(ctx, troubleTime)
	return undo()
}

// delayQueue is the number of the queue in which packets of a slow server wait.
const delayQueue = 101

// delay delays all that is sent over IPv4 in the namespace in which do runs something. netem does
// the same, but not all kernels have it.
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
