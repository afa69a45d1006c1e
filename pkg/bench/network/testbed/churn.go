package testbed

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/pkg/remote"
)

// ChurnRate is the number of pods that a Churn creates per minute.
const ChurnRate = 50

// Churn creates and deletes pods in the background.
type Churn struct {
	end  context.CancelFunc
	done chan struct{}
	// slots holds an element for each pod that is starting.
	slots chan struct{}

	mu    sync.Mutex
	ready int
	err   error
}

// NewChurn begins to create pods, ChurnRate per minute, alternating between the nodes of b, until
// ctx ends or Stop is called. It deletes each pod when it is ready. At most atOnce pods are
// starting at a time.
func NewChurn(ctx context.Context, b *Bed, atOnce int) *Churn {
	ctx, cancel := context.WithCancel(ctx)
	c := &Churn{end: cancel, done: make(chan struct{}), slots: make(chan struct{}, atOnce)}
	go c.run(ctx, b)
	return c
}

func (c *Churn) run(ctx context.Context, b *Bed) {
	defer close(c.done)
	var running sync.WaitGroup
	defer running.Wait()
	tick := time.NewTicker(time.Minute / ChurnRate)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case c.slots <- struct{}{}:
		}
		running.Go(func() {
			defer func() { <-c.slots }()
			c.one(ctx, b, i)
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
func (c *Churn) one(ctx context.Context, b *Bed, i int) {
	p := &remote.Pod{Name: fmt.Sprintf("churn-%d", i), Node: b.Nodes[i%2].Name,
		Command: []string{"veil-tools", "pause"}}
	err := b.ns.Run(ctx, p)
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

// Stop ends the churn and returns the number of pods that became ready.
func (c *Churn) Stop() (ready int, err error) {
	c.end()
	<-c.done
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ready, c.err
}
