package lab

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/internal/poll"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/load"
)

// beat is the time between two ADDs, between two DELs, and between two changes of peers.
const beat = time.Second

// churn measures a node with many pods and peers while both change. It measures veild's CPU time,
// the duration of veild's turns, and the time until a changed peer is in the kernel.
func (r *run) churn(ctx context.Context) (err error) {
	s, err := r.newScaled(ctx, lab.Dual)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.lab.Close()) }()
	if err := s.register(ctx); err != nil {
		return err
	}
	if err := s.waitPeers(ctx, r.nodes); err != nil {
		return err
	}
	began := time.Now()
	pods, err := s.attach(ctx)
	if err != nil {
		return err
	}
	r.Progress("%d pods attached by %d workers in %.1f s", len(pods), workers,
		time.Since(began).Seconds())
	if _, err := s.quiet(ctx); err != nil {
		r.Progress("%v: measured nevertheless", err)
	}
	return s.measureChurn(ctx, pods)
}

// attach adds the initial pods, by several workers at the same time, and returns them.
func (s *scaled) attach(ctx context.Context) ([]*lab.Pod, error) {
	pods := make([]*lab.Pod, s.attached)
	err := byWorkers(ctx, len(pods), func(ctx context.Context, i int) (err error) {
		if pods[i], err = s.node.AddPod(ctx, fmt.Sprintf("stays%d", i), lab.PodOptions{}); err != nil {
			err = fmt.Errorf("pod %d of %d: %w", i, s.attached, err)
		}
		return err
	})
	return pods, err
}

// measureChurn adds a pod, deletes the oldest pod and changes a peer, each once per beat, and adds
// the cases.
func (s *scaled) measureChurn(ctx context.Context, pods []*lab.Pod) error {
	pid := s.node.Program("veild").PID()
	logged, err := s.configured()
	if err != nil {
		return err
	}
	before, err := s.turns(ctx)
	if err != nil {
		return err
	}
	cpu, err := load.ProcessCPU(pid)
	if err != nil {
		return err
	}

	began := time.Now()
	beats, err := s.beats(ctx, pods, began)
	if err != nil {
		return err
	}

	elapsed := time.Since(began)
	cpuAfter, err := load.ProcessCPU(pid)
	if err != nil {
		return err
	}
	after, err := s.turns(ctx)
	if err != nil {
		return err
	}
	since, err := s.configured()
	if err != nil {
		return err
	}

	if since = since[len(logged):]; len(since) == 0 {
		return errors.New("veild configured no peer")
	}

	var waits []float64
	for _, c := range since {
		waits = append(waits, float64(c.Waited)/float64(time.Millisecond))
	}

	turns := after.minus(before)
	s.Progress("%d beats in %.1f s: %.0f turns, mean %.1f ms; %d changes of the tunnels, "+
		"median %.1f ms",
		beats, elapsed.Seconds(), turns.count, turns.meanMillis(), len(since),
		bench.Quantile(waits, 0.5))
	s.one(caseChurnCPU, bench.Percent, 100*(cpuAfter-cpu).Seconds()/elapsed.Seconds())
	s.one(caseChurnApply, bench.Millisecond, 1000*turns.quantile(0.99))
	s.one(caseChurnPeer, bench.Millisecond, bench.Quantile(waits, 0.99))
	return nil
}

// beats runs the load for s.churned and returns the number of beats. If an operation takes longer
// than a beat, the next one of its kind begins late, so at most one of each kind runs at a time.
func (s *scaled) beats(ctx context.Context, pods []*lab.Pod, began time.Time) (int, error) {
	adds, dels, moves := every(s.churned), every(s.churned), every(s.churned)
	errs := make(chan error, 3)
	added := make(chan *lab.Pod, len(pods)+cap(adds))
	for _, p := range pods {
		added <- p
	}
	go func() {
		errs <- onBeat(ctx, adds, began, func(i int) error {
			p, err := s.node.AddPod(ctx, fmt.Sprintf("comes%d", i), lab.PodOptions{})
			if err == nil {
				added <- p
			}
			return err
		})
	}()
	go func() {
		errs <- onBeat(ctx, dels, began.Add(beat/3), func(int) error { return (<-added).Del(ctx) })
	}()
	go func() {
		errs <- onBeat(ctx, moves, began.Add(2*beat/3), func(i int) error {
			return s.moveEndpoint(ctx, i%s.nodes, uint16(40000+i/s.nodes))
		})
	}()
	err := errors.Join(<-errs, <-errs, <-errs)
	return cap(adds), err
}

// every returns a closed channel that holds the numbers of all beats in d.
func every(d time.Duration) chan int {
	beats := make(chan int, int(d/beat))
	for i := range cap(beats) {
		beats <- i
	}
	close(beats)
	return beats
}

// onBeat calls do with each number in beats. Beat i begins at began plus i beats, or later if the
// previous call took longer.
func onBeat(ctx context.Context, beats <-chan int, began time.Time, do func(i int) error) error {
	for i := range beats {
		if err := poll.Pause(ctx, time.Until(began.Add(time.Duration(i)*beat))); err != nil {
			return err
		}
		if err := do(i); err != nil {
			return fmt.Errorf("beat %d: %w", i, err)
		}
	}
	return nil
}
