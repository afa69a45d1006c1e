package network

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/session"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// churnRate is the number of pods that are created per minute.
const churnRate = 50

// churnWindows is the number of equal parts of the churn time. Each part is one sample.
const churnWindows = 5

// churnPatience is the time that churn may take beyond its duration.
const churnPatience = 2 * time.Minute

// inFlight returns the number of pods that may be starting at a time. More pods would overload an
// emulated node, and the overload would be measured. churn may then not reach churnRate, so the
// reached rate is a case of its own.
func inFlight(platform string) int {
	if platform == bench.Emulated {
		return 2
	}
	return 10
}

// churn creates pods at churnRate, alternating between the nodes, and deletes each when it is
// ready. Meanwhile it measures the CPU time and the memory of veild.
func (s *run) churn(ctx context.Context) error {
	if s.Churn < 0 {
		s.Skip(caseChurnCPU, "left out by the caller")
		return nil
	}

	s.Progress("%d pods a minute for %v", churnRate, s.Churn)
	ctx, cancel := context.WithTimeoutCause(ctx, s.Churn+churnPatience,
		errors.New("the churn did not end in time"))
	defer cancel()
	pods := newChurner(ctx, s.ground, inFlight(s.Result.Platform))
	defer pods.end()
	var cpu, memory []float64

	before, err := s.ground.snapshot(ctx)
	for range churnWindows {
		if err != nil {
			return err
		}

		began := time.Now()
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(s.Churn / churnWindows):
		}

		var after [2]session.Counters
		if after, err = s.ground.snapshot(ctx); err != nil {
			return err
		}

		busiest, largest := 0.0, 0.0
		for i := range after {
			busiest = max(busiest, (after[i].DaemonCPU-before[i].DaemonCPU).Seconds()/time.Since(
				began).Seconds()*100)
			largest = max(largest, after[i].DaemonMiB)
		}

		cpu, memory = append(cpu, busiest), append(memory, largest)
		before = after
	}

	ready, err := pods.stop()
	if err != nil {
		return err
	}

	rate := float64(ready) / s.Churn.Minutes()
	s.Result.Cases = append(s.Result.Cases,
		bench.Case{Name: caseChurnCPU, Unit: bench.Percent, Ours: bench.Summarize(cpu)},
		bench.Case{Name: caseChurnMemory, Unit: bench.MiB, Ours: bench.Summarize(memory)},
		bench.Case{Name: caseChurnRate, Unit: bench.Count, Ours: bench.Summarize([]float64{rate})})
	return nil
}

// churner creates and deletes pods in the background.
type churner struct {
	end  context.CancelFunc
	done chan struct{}
	// slots holds an element for each pod that is starting.
	slots chan struct{}

	mu    sync.Mutex
	ready int
	err   error
}

func newChurner(ctx context.Context, g *ground, atOnce int) *churner {
	ctx, cancel := context.WithCancel(ctx)
	c := &churner{end: cancel, done: make(chan struct{}), slots: make(chan struct{}, atOnce)}
	go c.run(ctx, g)
	return c
}

func (c *churner) run(ctx context.Context, g *ground) {
	defer close(c.done)
	var running sync.WaitGroup
	defer running.Wait()
	tick := time.NewTicker(time.Minute / churnRate)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case c.slots <- struct{}{}:
		}
		running.Go(func() {
			defer func() { <-c.slots }()
			c.one(ctx, g, i)
		})
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// one creates a pod, waits until it is ready, and deletes it. Pods that are left when the churn
// ends are removed with the namespace.
func (c *churner) one(ctx context.Context, g *ground, i int) {
	p := &remote.Pod{Name: fmt.Sprintf("churn-%d", i), Node: g.nodes[i%2].Name,
		Command: []string{"veil-tools", "pause"}}
	err := g.ns.Run(ctx, p)
	if err == nil {
		c.mu.Lock()
		c.ready++
		c.mu.Unlock()
		err = p.Delete(ctx)
	}
	if err != nil && ctx.Err() == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.err = errors.Join(c.err, err)
	}
}

// stop ends the churn and returns the number of pods that became ready.
func (c *churner) stop() (ready int, err error) {
	c.end()
	<-c.done
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ready, c.err
}
