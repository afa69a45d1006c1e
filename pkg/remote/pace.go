package remote

import (
	"context"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// usualStart is how long a pod of the suite takes from the kubelet's first look to Ready
	// on the machines for which the patience of this suite was written.
	usualStart = 6 * time.Second
	// slowest bounds a pace: a machine that takes longer counts as broken, not as slow.
	slowest = 5
)

// Pace measures how slow the machines of a cluster are, by the pods that have become Ready on
// them. Waits are longer on slow machines; limits on losses are not relaxed. The zero value
// stands for usual machines. It may be used by several goroutines.
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

// WithPace returns a context in which the patience of Until follows p.
func WithPace(ctx context.Context, p *Pace) context.Context {
	return context.WithValue(ctx, paceKey{}, p)
}

// Patience returns how long to wait for something that takes at most usual on usual machines.
func Patience(ctx context.Context, usual time.Duration) time.Duration {
	p, ok := ctx.Value(paceKey{}).(*Pace)
	if !ok {
		return usual
	}
	return time.Duration(float64(usual) * p.Factor())
}

// observe passes a pod that is Ready to the context's pace, if it has one.
func observe(ctx context.Context, pod *corev1.Pod) {
	if p, ok := ctx.Value(paceKey{}).(*Pace); ok {
		p.learn(pod)
	}
}
