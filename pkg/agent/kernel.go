package agent

import (
	"context"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/pkg/hostnet/watch"
)

// kernelChanges collects the kernel's notifications until the loop takes them. It is shared: the
// watch adds to what the loop takes.
type kernelChanges struct {
	told chan struct{}

	mu sync.Mutex // guards the fields below
	c  watch.Change
}

func (k *kernelChanges) add(c watch.Change) {
	k.mu.Lock()
	k.c.Add(c)
	k.mu.Unlock()
	select {
	case k.told <- struct{}{}:
	default:
	}
}

func (k *kernelChanges) take() watch.Change {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.c
	k.c = watch.Change{}
	return c
}

// Pauses before the kernel is watched again. A watch that lasted for watchSteady resets them.
const (
	watchPauseMin = 100 * time.Millisecond
	watchPauseMax = 10 * time.Second
	watchSteady   = time.Minute
)

// watchPause returns the pause after a watch that broke.
func watchPause(last, lasted time.Duration) time.Duration {
	if last == 0 || lasted >= watchSteady {
		return watchPauseMin
	}
	return min(2*last, watchPauseMax)
}

// watchKernel passes the changes of others to the loop, the keeper of pods and the features.
func (a *Agent) watchKernel(ctx context.Context) error {
	pause := time.Duration(0)
	for {
		began := time.Now()
		changes, err := watch.Start(ctx, quiet, lossy)
		if err != nil && pause == 0 {
			return err
		}
		if err != nil {
			a.log.Warn("the kernel's changes cannot be watched, and are found by comparing alone",
				"every", resync, "error", err)
		} else {
			for c := range changes {
				a.changedKernel(c)
			}
		}
		pause = watchPause(pause, time.Since(began))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		// The subscription broke: everything is read again.
		a.changedKernel(watch.All())
	}
}

func (a *Agent) changedKernel(c watch.Change) {
	a.pods.Changed(c)
	a.changedFeatures(c)
	a.kernel.add(c)
}
