package service

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/kubeveil/kubeveil/pkg/netns"
)

// space is a network namespace. It has no mount point and no process of its own: it
// lives as long as the descriptor, or a process in it.
type space struct {
	name string
	f    *os.File
}

// newSpace makes a namespace by way of a process that is born in it.
func newSpace(name string) (*space, error) {
	cmd := exec.Command("cat")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("make namespace %s: %w", name, err)
	}
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid))
	_ = in.Close()
	if err = errors.Join(err, cmd.Wait()); err != nil {
		return nil, fmt.Errorf("make namespace %s: %w", name, err)
	}
	s := &space{name, f}
	return s, errors.Join(s.ip(context.Background(), "link set lo up"),
		s.sysctl("net/ipv4/conf/all/rp_filter", "0", "net/ipv4/conf/default/rp_filter", "0"))
}

func (s *space) close() { _ = s.f.Close() }

// path is how other processes name it.
func (s *space) path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), s.f.Fd()) }

func (s *space) do(fn func() error) error { return netns.DoFd(int(s.f.Fd()), s.name, fn) }

// command prepares a program in the namespace, and in a cgroup unless that is nil. It dies with
// this process: Go ends no thread that starts programs, so the signal at the parent thread's death
// comes at the process's.
func (s *space) command(ctx context.Context, cgroup *os.File, name string,
	args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "nsenter",
		append([]string{"--net=" + s.path(), "--", name}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if cgroup != nil {
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(cgroup.Fd())
	}
	cmd.WaitDelay = 2 * time.Second
	return cmd
}

// run runs a program to its end and returns what it printed; the error has what it wrote to its
// standard error.
func run(cmd *exec.Cmd) ([]byte, error) {
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return out, fmt.Errorf("run %s: %w: %s",
			strings.Join(cmd.Args[min(3, len(cmd.Args)-1):], " "), err, tail(stderr.String(), 500))
	}
	return out, nil
}

// tail returns the end of a text, at most n bytes of it.
func tail(text string, n int) string {
	text = strings.TrimSpace(text)
	return text[max(0, len(text)-n):]
}

// ip runs lines of ip(8), up to the first that is refused.
func (s *space) ip(ctx context.Context, lines ...string) error {
	cmd := s.command(ctx, nil, "ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	if _, err := run(cmd); err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	return nil
}

// sysctl sets parameters by name and value in turns.
func (s *space) sysctl(pairs ...string) error {
	return s.do(func() error {
		for i := 0; i+1 < len(pairs); i += 2 {
			if err := os.WriteFile("/proc/sys/"+pairs[i], []byte(pairs[i+1]), 0o644); err != nil {
				return fmt.Errorf("%s: set %s: %w", s.name, pairs[i], err)
			}
		}
		return nil
	})
}

// daemon is a program that runs until it is closed.
type daemon struct {
	cmd  *exec.Cmd
	done chan struct{}
	out  strings.Builder
}

// start starts a program that listens on ports, and waits until it does.
func (s *space) start(ctx context.Context, ports []uint16, name string,
	args ...string) (*daemon, error) {
	d := &daemon{cmd: s.command(context.WithoutCancel(ctx), nil, name, args...),
		done: make(chan struct{})}
	d.cmd.Stderr = &d.out
	d.cmd.Env = append(os.Environ(), childEnv+"=1")
	if err := d.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: start %s: %w", s.name, name, err)
	}
	go func() {
		_ = d.cmd.Wait()
		close(d.done)
	}()
	for _, port := range ports {
		if err := s.listening(ctx, port, d.done); err != nil {
			d.close()
			return nil, fmt.Errorf("%s: %s: %w: %s", s.name, name, err, tail(d.out.String(), 500))
		}
	}
	return d, nil
}

// listening waits until the port has a listener, without connecting to it: some serve one
// connection at a time.
func (s *space) listening(ctx context.Context, port uint16, ended <-chan struct{}) error {
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()

	for {
		var inUse bool
		err := s.do(func() error {
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
			return fmt.Errorf("nobody listens on port %d", port)
		case <-tick.C:
		}
	}
}

// close ends the program and waits.
func (d *daemon) close() {
	_ = d.cmd.Process.Kill()
	<-d.done
}
