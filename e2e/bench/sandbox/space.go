package sandbox

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

// Space is a network namespace. It has no mount point and no process of its own: it
// lives as long as the descriptor, or a process in it.
type Space struct {
	// Name is for errors.
	Name string
	f    *os.File
}

// New makes a namespace by way of a process that is born in it.
func New(name string) (*Space, error) {
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
	s := &Space{name, f}
	return s, errors.Join(s.IP(context.Background(), "link set lo up"),
		s.Sysctl("net/ipv4/conf/all/rp_filter", "0", "net/ipv4/conf/default/rp_filter", "0"))
}

// Close forgets it. It ends with the last process in it.
func (s *Space) Close() { _ = s.f.Close() }

// Path returns the path by which other processes can open it.
func (s *Space) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), s.f.Fd()) }

// Do runs fn on a thread in the namespace.
func (s *Space) Do(fn func() error) error { return netns.DoFd(int(s.f.Fd()), s.Name, fn) }

// Command prepares a program in the namespace, and in a cgroup unless that is nil. The program ends
// with this process: Go does not end threads that start programs, so the parent-death signal comes
// only when the process ends.
func (s *Space) Command(ctx context.Context, cgroup *os.File, name string,
	args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "nsenter",
		append([]string{"--net=" + s.Path(), "--", name}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if cgroup != nil {
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(cgroup.Fd())
	}
	cmd.WaitDelay = 2 * time.Second
	return cmd
}

// Run runs a program to its end and returns what it printed; the error has what it wrote to its
// standard error.
func Run(cmd *exec.Cmd) ([]byte, error) {
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return out, fmt.Errorf("run %s: %w: %s",
			strings.Join(cmd.Args[min(3, len(cmd.Args)-1):], " "), err, Tail(stderr.String(), 500))
	}
	return out, nil
}

// Tail returns the end of a text, at most n bytes of it.
func Tail(text string, n int) string {
	text = strings.TrimSpace(text)
	return text[max(0, len(text)-n):]
}

// IP runs lines of ip(8), up to the first that is refused.
func (s *Space) IP(ctx context.Context, lines ...string) error {
	cmd := s.Command(ctx, nil, "ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	if _, err := Run(cmd); err != nil {
		return fmt.Errorf("%s: %w", s.Name, err)
	}
	return nil
}

// Sysctl sets parameters by name and value in turns.
func (s *Space) Sysctl(pairs ...string) error {
	return s.Do(func() error {
		for i := 0; i+1 < len(pairs); i += 2 {
			if err := os.WriteFile("/proc/sys/"+pairs[i], []byte(pairs[i+1]), 0o644); err != nil {
				return fmt.Errorf("%s: set %s: %w", s.Name, pairs[i], err)
			}
		}
		return nil
	})
}

// Daemon is a program that runs until it is closed.
type Daemon struct {
	cmd  *exec.Cmd
	done chan struct{}
	out  strings.Builder
}

// Program is a process that Start started.
type Program struct {
	Argv []string
	// Env is a variable that the program has beside those of this process; may be empty.
	Env string
	// Ports are the TCP ports on which it listens.
	Ports []uint16
}

// Start starts a program, and waits until it listens on its ports.
func (s *Space) Start(ctx context.Context, p Program) (*Daemon, error) {
	name := p.Argv[0]
	d := &Daemon{cmd: s.Command(context.WithoutCancel(ctx), nil, name, p.Argv[1:]...),
		done: make(chan struct{})}
	d.cmd.Stderr = &d.out
	if p.Env != "" {
		d.cmd.Env = append(os.Environ(), p.Env)
	}
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
