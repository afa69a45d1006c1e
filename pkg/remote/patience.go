package remote

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubeveil/kubeveil/internal/poll"
)

const (
	// firstPause and lastPause are the first and the longest pause between two calls of Until.
	firstPause = 50 * time.Millisecond
	lastPause  = time.Second
	// usualStart is the time from status.startTime of a pod until it is Ready, on the machines for
	// which the time limits of the suites were chosen.
	usualStart = 6 * time.Second
	// slowest is the largest Factor. A machine that is slower than that counts as broken.
	slowest = 5
)

// Pace measures how slow the machines of a cluster are, by the longest time that a pod took to
// become Ready. Waits are longer on slow machines; limits on losses stay the same. The zero value
// stands for usual machines. It is safe for concurrent use.
type Pace struct{ longest atomic.Int64 }

// learn records how long a pod took to become Ready.
func (p *Pace) learn(pod *corev1.Pod) {
	if pod.Status.StartTime == nil {
		return
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			p.observe(c.LastTransitionTime.Sub(pod.Status.StartTime.Time))
		}
	}
}

func (p *Pace) observe(start time.Duration) {
	for {
		have := p.longest.Load()
		if int64(start) <= have || p.longest.CompareAndSwap(have, int64(start)) {
			return
		}
	}
}

// Factor returns 1 on usual machines and more on slow ones, at most 5.
func (p *Pace) Factor() float64 {
	return min(slowest, max(1, float64(p.longest.Load())/float64(usualStart)))
}

type paceKey struct{}

// WithPace returns a context in which Patience and Until multiply time limits by p.Factor.
func WithPace(ctx context.Context, p *Pace) context.Context {
	return context.WithValue(ctx, paceKey{}, p)
}

// Patience returns the time limit for a wait whose limit on usual machines is usual.
func Patience(ctx context.Context, usual time.Duration) time.Duration {
	p, ok := ctx.Value(paceKey{}).(*Pace)
	if !ok {
		return usual
	}
	return time.Duration(float64(usual) * p.Factor())
}

// observe records a pod that is Ready in the pace of ctx, if ctx has one.
func observe(ctx context.Context, pod *corev1.Pod) {
	if p, ok := ctx.Value(paceKey{}).(*Pace); ok {
		p.learn(pod)
	}
}

// Stop wraps an error. Until returns at once when its function returns such an error.
func Stop(err error) error { return poll.Stop(err) }

// Until calls fn until it returns nil or an error of Stop, at most for patience, which Patience
// adjusts to the pace of ctx. Otherwise it returns what and the last error of fn. The context of fn
// ends when the time is over.
func Until(ctx context.Context, what string, patience time.Duration,
	fn func(ctx context.Context) error) error {
	ctx, cancel := withPatience(ctx, patience)
	defer cancel()
	err := poll.Until(ctx, firstPause, lastPause, func() error { return fn(ctx) })
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// withPatience returns a context that ends when Patience(ctx, usual) has passed. That time may grow
// during the wait, because the pace may change. The caller must call the function that it returns.
func withPatience(ctx context.Context, usual time.Duration) (context.Context, func()) {
	ctx, end := context.WithCancelCause(ctx)
	began := time.Now()
	go func() {
		for {
			left := Patience(ctx, usual) - time.Since(began)
			if left <= 0 {
				end(context.DeadlineExceeded)
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(left):
			}
		}
	}()
	return ctx, func() { end(nil) }
}
