package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

// keeper keeps the process of one device alive.
type keeper struct {
	name    string
	dir     string
	request atomic.Pointer[Request]
	command func(Request) []string
	log     *slog.Logger

	stop context.CancelFunc
	gone atomic.Bool // the request is gone: the device follows

	removing bool // of the supervisor's loop alone
}

// remove ends the process and then the device.
func (k *keeper) remove() {
	k.gone.Store(true)
	k.stop()
}

// keep starts a keeper, which signals its end on s.done.
func (s *Supervisor) keep(ctx context.Context, r Request) *keeper {
	ctx, stop := context.WithCancel(ctx)
	k := &keeper{name: r.Device, dir: s.Dir, command: s.Command,
		log: s.Log.With("device", r.Device), stop: stop}
	k.request.Store(&r)
	go func() {
		defer func() { s.done <- k.name }()
		defer stop()
		k.run(ctx)
		if k.gone.Load() {
			k.clean()
		}
	}()
	return k
}

// Back-off after a process that lived less than shortLife: the first is
// started at once, later ones after minDelay, doubled up to maxDelay.
const (
	shortLife = time.Second
	minDelay  = 100 * time.Millisecond
	maxDelay  = 5 * time.Second
)

// nextDelay is the pause before the next start, after a process that lived so long.
func nextDelay(delay, lived time.Duration, failures int) time.Duration {
	switch {
	case lived >= shortLife || failures <= 1:
		return 0
	case delay == 0:
		return minDelay
	}
	return min(2*delay, maxDelay)
}

// run starts the process again whenever it ends, until ctx ends.
func (k *keeper) run(ctx context.Context) {
	var delay time.Duration
	failures := 0
	for {
		lock, err := k.acquire(ctx)
		if ctx.Err() != nil {
			if lock != nil {
				lock.Close()
			}
			return
		}

		began := time.Now()
		if err == nil {
			err = k.child(ctx, lock)
		}
		if ctx.Err() != nil {
			return
		}
		lived := time.Since(began)
		if failures++; lived >= shortLife {
			failures = 0
		}

		delay = nextDelay(delay, lived, failures)
		k.log.Warn("device process ended, starting it again", "err", err,
			"lived", lived.Round(time.Millisecond), "pause", delay)
		select {
		case <-ctx.Done():
			return
		case <-time.After(delay):
		}
	}
}

// adoptedPoll is how often the end of an adopted process is looked for.
const adoptedPoll = 20 * time.Millisecond

// acquire takes the device's lock. While a process that another supervisor
// started holds it, that process serves the device: it is waited for, and
// ended when ctx ends.
func (k *keeper) acquire(ctx context.Context) (*os.File, error) {
	path := filepath.Join(k.dir, k.name+".lock")
	for adopted := false; ; {
		lock, held, err := tryLock(path)
		if err != nil || held {
			return lock, err
		}
		if !adopted {
			k.log.Info("adopted the living device process")
			adopted = true
		}
		select {
		case <-ctx.Done():
			return nil, endHolder(path)
		case <-time.After(adoptedPoll):
		}
	}
}

// grace is how long a process may take to end before it is killed.
const grace = 3 * time.Second

// child runs the device's process, which inherits the lock, and waits for it.
// When ctx ends it is told to end.
func (k *keeper) child(ctx context.Context, lock *os.File) error {
	argv := k.command(*k.request.Load())
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.ExtraFiles = []*os.File{lock}
	// A group of its own: what kills the supervisor's group leaves the data path.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = grace
	err := cmd.Start()
	lock.Close()
	if err != nil {
		return fmt.Errorf("start process of %s: %w", k.name, err)
	}
	k.log.Info("device process started", "pid", cmd.Process.Pid)
	return cmd.Wait()
}

// clean removes the device and what belongs to it, the state with the key first.
func (k *keeper) clean() {
	path := func(suffix string) string { return filepath.Join(k.dir, k.name+suffix) }
	var errs []error
	// A process killed while it saved leaves a part under another name.
	parts, _ := filepath.Glob(filepath.Join(k.dir, "."+k.name+".*"))
	for _, file := range append(parts, path(".state"), filepath.Join(abi.WireGuardSocketDir, k.name+".sock")) {
		if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	errs = append(errs, removeTUN(k.name))
	if err := os.Remove(path(".lock")); err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		k.log.Warn("device not removed completely", "err", err)
		return
	}
	k.log.Info("device removed")
}
