package lab

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/pkg/bench"
)

// workers is the number of goroutines that add pods or nodes at the same time.
const workers = 8

// byWorkers calls do with each number below n, in workers goroutines. It returns the first error,
// after which it calls do no more.
func byWorkers(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(workers)
	for i := range n {
		g.Go(func() error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return do(ctx, i)
		})
	}
	return g.Wait()
}

// add compares the time of ADD in the plugin veil and in the reference plugins. Neither chain has
// further plugins. The pods have only IPv4, because with IPv6 the reference plugins wait for
// duplicate address detection.
func (r *run) add(ctx context.Context) (err error) {
	var labs [2]*lab.Lab
	for i, network := range []lab.Network{lab.Veil, lab.Clear} {
		l, err := lab.New(ctx, lab.Options{Nodes: 1, Family: lab.IPv4, Network: network,
			VeildConfig: plainCNI})
		if err != nil {
			return err
		}
		defer l.Close()
		labs[i] = l
	}
	err = r.Both(ctx, []bench.Comparison{{
		Name: caseAdd, Unit: bench.Millisecond, Ours: r.addP50(labs[0].Nodes()[0]),
		Base: r.addP50(labs[1].Nodes()[0]), BaseName: basePTP,
	}})
	if err != nil {
		return err
	}
	r.Result.Gates = append(r.Result.Gates,
		bench.AtMost(labels[caseAdd]+", against "+basePTP, r.Result.Find(caseAdd, 0), 1.3))
	return r.addMany(ctx, labs[0].Nodes()[0])
}

// addP50 returns a measure that adds pods to n and removes them, one after the other. Its value is
// the median time of ADD in milliseconds.
func (r *run) addP50(n *lab.Node) bench.Measure {
	return func(ctx context.Context) (bench.Sample, error) {
		var millis []float64
		for i := range r.adds {
			pod, err := n.AddPod(ctx, fmt.Sprintf("add%d", i), lab.PodOptions{})
			if err != nil {
				return bench.Sample{}, err
			}
			millis = append(millis, float64(pod.Added)/float64(time.Millisecond))
			if err := pod.Del(ctx); err != nil {
				return bench.Sample{}, err
			}
		}
		return bench.Sample{Value: bench.Quantile(millis, 0.5)}, nil
	}
}

// addMany adds pods by several workers at the same time. It adds a case with the total time, and a
// gate that is missed if an ADD failed.
func (r *run) addMany(ctx context.Context, n *lab.Node) error {
	start := time.Now()
	errs := make([]error, r.pods)
	err := byWorkers(ctx, r.pods, func(ctx context.Context, i int) error {
		if _, err := n.AddPod(ctx, fmt.Sprintf("many%d", i), lab.PodOptions{}); err != nil {
			errs[i] = fmt.Errorf("pod many%d: %w", i, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })

	took := float64(time.Since(start)) / float64(time.Millisecond)
	r.Progress("%d pods by %d workers in %s, %d errors", r.pods, workers,
		bench.Millisecond.Format(took), len(errs))
	for _, err := range errs[:min(3, len(errs))] {
		r.Progress("  %v", err)
	}

	r.Add(caseAddWorkers, "", bench.Millisecond, took)
	gate := bench.Exactly(fmt.Sprintf("%d pods added by %d workers", r.pods, workers), len(errs), 0,
		"errors")
	if len(errs) > 0 {
		gate.Got += ", the first: " + errs[0].Error()
	}

	r.Result.Gates = append(r.Result.Gates, gate)
	return nil
}
