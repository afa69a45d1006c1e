package suite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// Daemon is a process that runs until Close.
type Daemon struct {
	cmd  *exec.Cmd
	done chan struct{}
	out  strings.Builder
}

// Program describes a process that Start starts.
type Program struct {
	Argv []string
	// Ports are the TCP ports on which the program listens.
	Ports []uint16
}

// Start starts a program in the namespace, and waits until it listens on its ports.
func (s *Space) Start(ctx context.Context, p Program) (*Daemon, error) {
	name := p.Argv[0]
	d := &Daemon{cmd: s.Command(context.WithoutCancel(ctx), nil, name, p.Argv[1:]...),
		done: make(chan struct{})}
	d.cmd.Stderr = &d.out
	if err := d.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: start %s: %w", s.Name, name, err)
	}
	go func() {
		_ = d.cmd.Wait()
		close(d.done)
	}()
	for _, port := range p.Ports {
		if err := s.listening(ctx, port, d); err != nil {
			d.Close()
			return nil, fmt.Errorf("%s: %s: %w: %s", s.Name, name, err, d.Output())
		}
	}
	return d, nil
}

// listening waits until the port has a listener. It does not connect, because some programs serve
// one connection at a time.
func (s *Space) listening(ctx context.Context, port uint16, d *Daemon) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Second,
		fmt.Errorf("no process listens on port %d", port))
	defer cancel()
	return d.Await(ctx, 20*time.Millisecond, func() (is bool, err error) {
		err = s.Do(func() (err error) {
			is, err = isListening(port)
			return err
		})
		return is, err
	})
}

// isListening reports whether a socket of the calling thread's network namespace listens on a TCP
// port. It reads the kernel's tables, because a trial bind of the port could make the program's own
// bind fail.
func isListening(port uint16) (bool, error) {
	const stateListen = "0A" // TCP_LISTEN
	suffix := fmt.Sprintf(":%04X", port)
	for _, table := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile("/proc/thread-self/net/" + table)
		if errors.Is(err, fs.ErrNotExist) {
			continue // A kernel without IPv6.
		}
		if err != nil {
			return false, err
		}
		// The columns are: number, local address and port, remote address and port, state.
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) > 3 && f[3] == stateListen &&
				strings.HasSuffix(f[1], suffix) {
				return true, nil
			}
		}
	}
	return false, nil
}

// Await calls ready, with pauses between the calls, until ready returns true or an error. It
// returns that error, the cause of ctx if ctx is done, or an error if the program ends.
func (d *Daemon) Await(ctx context.Context, pause time.Duration,
	ready func() (bool, error)) error {
	tick := time.NewTicker(pause)
	defer tick.Stop()

	for {
		if is, err := ready(); is || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-d.done:
			return errors.New("it has ended")
		case <-tick.C:
		}
	}
}

// Close kills the program and the programs in its process group, and waits for the program.
func (d *Daemon) Close() {
	select {
	case <-d.done: // another process may have the PID by now
	default:
		_ = syscall.Kill(-d.cmd.Process.Pid, syscall.SIGKILL)
	}
	<-d.done
}

// Pid returns the PID of the process.
func (d *Daemon) Pid() int { return d.cmd.Process.Pid }

// Output returns the last 500 bytes of the program's standard error. Call it only after Close.
func (d *Daemon) Output() string { return Tail(d.out.String(), 500) }
