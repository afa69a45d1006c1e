package agent

import (
	"context"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/pkg/hostnet/watch"
)

// kernelChanges collects the kernel's notifications until the loop takes them. The goroutine of the
// watch adds them.
type kernelChanges struct {
	told chan struct{} // signals that there are changes; holds at most one signal

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

// Pauses before a broken watch of the kernel is started again. They double, until a watch lasts for
// watchSteady.
const (
	watchPauseMin = 100 * time.Millisecond
	watchPauseMax = 10 * time.Second
	watchSteady   = time.Minute
)

// watchPause returns the pause after a watch that broke. last is the previous pause, and lasted the
// duration of the watch.
func watchPause(last, lasted time.Duration) time.Duration {
	if last == 0 || lasted >= watchSteady {
		return watchPauseMin
	}
	return min(2*last, watchPauseMax)
}

// watchKernel passes changes of the kernel's state to the loop, the keeper of pods and the
// features, until ctx ends. It returns an error only if the first watch cannot start.
func (a *Agent) watchKernel(ctx context.Context) error {
	pause := time.Duration(0)
	for {
		began := time.Now()

		changes, err := watch.Start(ctx, quiet, lossy)
		if err != nil && pause == 0 {
			return err
		}
		if err != nil {
			a.log.Warn("changes in the kernel cannot be watched and are found only by comparing",
				"every", resync, "error", err)
		} else {
			if pause == 0 { // They may have changed before the first watch began.
				a.changedFeatures(watch.Change{Filters: true})
			}
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
		// Notifications may be lost, so everything is read again.
		a.changedKernel(watch.All())
	}
}

func (a *Agent) changedKernel(c watch.Change) {
	a.pods.Changed(c)
	a.changedFeatures(c)
	a.kernel.add(c)
}
