package suite

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// Daemon is a program that runs until it is closed.
type Daemon struct {
	cmd  *exec.Cmd
	done chan struct{}
	out  strings.Builder
}

// Program is a process that Start starts.
type Program struct {
	Argv []string
	// Ports are the TCP ports on which it listens.
	Ports []uint16
}

// Start starts a program, and waits until it listens on its ports.
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
		if err := s.listening(ctx, port, d.done); err != nil {
			d.Close()
			return nil, fmt.Errorf("%s: %s: %w: %s", s.Name, name, err, Tail(d.out.String(), 500))
		}
	}
	return d, nil
}

// listening waits until the port has a listener, without connecting to it: some serve one
// connection at a time.
func (s *Space) listening(ctx context.Context, port uint16, ended <-chan struct{}) error {
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()

	for {
		var inUse bool
		err := s.Do(func() error {
			l, err := net.Listen("tcp4", fmt.Sprintf(":%d", port))
			if err == nil {
				return l.Close()
			}
			inUse = errors.Is(err, syscall.EADDRINUSE)
			return nil
		})
		if err != nil || inUse {
			return err
		}

		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ended:
			return errors.New("it has ended")
		case <-deadline:
			return fmt.Errorf("no process listens on port %d", port)
		case <-tick.C:
		}
	}
}

// Close ends the program and waits.
func (d *Daemon) Close() {
	_ = d.cmd.Process.Kill()
	<-d.done
}
