package remote

import (
	"context"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
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
