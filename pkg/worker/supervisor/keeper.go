package supervisor

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

	"github.com/kubeveil/kubeveil/internal/secret"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/worker/handover"
	"github.com/kubeveil/kubeveil/pkg/worker/tunlink"
)

// keeper keeps a process running for one device.
type keeper struct {
	name    string
	dir     string
	request atomic.Pointer[Request]
	command func(Request) []string
	// takeover is Supervisor.Takeover.
	takeover func(Request) []string
	// named reports whether Supervisor.Instance is set. Processes that the keeper did not start
	// then belong to another container, and their PIDs mean nothing in this one.
	named bool
	log   *slog.Logger

	stop     context.CancelFunc
	gone     atomic.Bool // the request was removed, so the device must be removed
	leaving  atomic.Bool // a newer supervisor serves the device, so its process must stay
	settled  atomic.Bool // see Supervisor.settled
	attempts int         // failed attempts to take the device over
	process  *process    // the last started process; only run uses it until the keeper ends

	removing bool // only for the supervisor's loop: remove was called
}

// remove makes the keeper end the process, and then remove the device.
func (k *keeper) remove() {
	k.gone.Store(true)
	k.stop()
}

// keep starts a keeper. When the keeper ends, it sends its name on s.done.
func (s *Supervisor) keep(ctx context.Context, r Request) *keeper {
	ctx, stop := context.WithCancel(ctx)
	k := &keeper{name: r.Device, dir: s.Dir, command: s.Command, takeover: s.Takeover,
		named: s.Instance != "",
		log:   s.Log.With("device", r.Device), stop: stop}
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

// Back-off after processes that lived less than shortLife. The next process is started at once
// after the first, after minDelay following the second, and then after pauses that double up to
// maxDelay.
const (
	shortLife = time.Second
	minDelay  = 100 * time.Millisecond
	maxDelay  = 5 * time.Second
)

// nextDelay returns the pause before the next start. delay is the previous pause, lived the life of
// the last process, and failures the number of successive short lives.
func nextDelay(delay, lived time.Duration, failures int) time.Duration {
	switch {
	case lived >= shortLife || failures <= 1:
		return 0
	case delay == 0:
		return minDelay
	}
	return min(2*delay, maxDelay)
}

// run runs one process after another, until ctx ends.
func (k *keeper) run(ctx context.Context) {
	var delay time.Duration
	failures := 0
	for {
		began, err := k.once(ctx)
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

// adoptedPoll is the interval of checks whether an adopted process has ended.
const adoptedPoll = 20 * time.Millisecond

// once runs one process until it ends, and returns the time at which it began to serve the device.
// If a process of another supervisor serves the device, once starts a successor that takes the
// device over, or waits for that process to end. When ctx ends, once ends the process, unless
// another supervisor is responsible for it.
func (k *keeper) once(ctx context.Context) (began time.Time, err error) {
	path := filepath.Join(k.dir, k.name+".lock")
	var next time.Time
	pause := firstTry
	for adopted := false; ; {
		lock, held, err := tryLock(path)
		if err != nil {
			return time.Now(), err
		}
		if held {
			began := time.Now()
			if ctx.Err() != nil {
				return began, lock.Close()
			}
			return began, k.child(ctx, lock)
		}

		if !adopted {
			k.log.Info("adopted the living device process")
			adopted = true
		}
		if ctx.Err() == nil && time.Now().After(next) {
			if began, took, err := k.succeed(ctx); took {
				return began, err
			}
			next = time.Now().Add(pause)
			pause = min(2*pause, lastTry)
		}

		select {
		case <-ctx.Done():
			if k.leaving.Load() || k.named {
				return time.Now(), nil
			}
			return time.Now(), endHolder(path)
		case <-time.After(adoptedPoll):
		}
	}
}

// Pauses between attempts to take a device over. They double from firstTry to lastTry. The last
// pause is long, because an attempt that fails late stops the device for handover.Patience.
const (
	firstTry = time.Second
	lastTry  = time.Hour
	// settledAfter is the number of failed attempts after which the keeper counts as settled.
	settledAfter = 3
)

// grace is the time after SIGTERM after which a process is killed.
const grace = 3 * time.Second

// process is a started device process.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // the result of cmd.Wait, valid once done is closed
}

// start starts a process that has f as file descriptor 3; it closes f.
func (k *keeper) start(argv []string, f *os.File) (*process, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = secret.Environ()
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.ExtraFiles = []*os.File{f}
	// Use another process group, so that a signal to the supervisor's group does not stop the
	// device.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err := cmd.Start()
	f.Close()
	if err != nil {
		return nil, fmt.Errorf("start process of %s: %w", k.name, err)
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	k.process = p
	k.log.Info("device process started", "pid", cmd.Process.Pid)
	return p, nil
}

// ended reports whether the process has ended.
func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// end signals the process to end, kills it after grace, and waits for it.
func (p *process) end() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(grace):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
	return p.err
}

// wait waits until the process ends. When ctx ends, it ends the process, or leaves it running for a
// newer supervisor.
func (k *keeper) wait(ctx context.Context, p *process) error {
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
	}
	if k.leaving.Load() {
		return nil
	}
	return p.end()
}

// child starts the device's process, which inherits the lock, and waits for it.
func (k *keeper) child(ctx context.Context, lock *os.File) error {
	p, err := k.start(k.command(*k.request.Load()), lock)
	if err != nil {
		return err
	}
	k.settled.Store(true)
	return k.wait(ctx, p)
}

// succeed starts a process that takes the device over. took reports whether that succeeded. If so,
// succeed waits until the process ends.
func (k *keeper) succeed(ctx context.Context) (began time.Time, took bool, err error) {
	var argv []string
	if k.takeover != nil {
		argv = k.takeover(*k.request.Load())
	}
	if len(argv) == 0 {
		k.settled.Store(true)
		return time.Time{}, false, nil
	}

	r, w, err := os.Pipe()
	if err != nil {
		return time.Time{}, false, fmt.Errorf("make pipe for a successor: %w", err)
	}
	defer r.Close()
	p, err := k.start(argv, w)
	if err != nil {
		k.log.Warn("device cannot be taken over", "err", err)
		return time.Time{}, false, err
	}

	// The read ends when the process writes, or when it ends and so closes the pipe.
	defer context.AfterFunc(ctx, func() { _ = r.SetReadDeadline(time.Unix(1, 0)) })()
	n, _ := r.Read(make([]byte, 1))
	if n == 0 {
		err := k.wait(ctx, p)
		if k.attempts++; k.attempts >= settledAfter {
			k.settled.Store(true)
		}
		k.log.Warn("device was not taken over, its process serves on", "err", err)
		return time.Time{}, false, err
	}
	k.attempts = 0
	k.settled.Store(true)
	k.log.Info("device taken over with its sessions")
	return time.Now(), true, k.wait(ctx, p)
}

// clean removes the device and its files. It removes the state, which holds the key, first.
func (k *keeper) clean() {
	path := func(suffix string) string { return filepath.Join(k.dir, k.name+suffix) }
	var errs []error
	// A process that is killed while it saves the state leaves a temporary file.
	parts, _ := filepath.Glob(filepath.Join(k.dir, "."+k.name+".*"))
	for _, file := range append(parts, path(".state"), path(".stamp"),
		handover.Path(k.dir, k.name), filepath.Join(abi.WireGuardSocketDir, k.name+".sock")) {
		if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	errs = append(errs, tunlink.Remove(k.name))
	if err := os.Remove(path(".lock")); err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		k.log.Warn("device not removed completely", "err", err)
		return
	}
	k.log.Info("device removed")
}
