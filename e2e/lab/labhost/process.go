package labhost

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Process is a program that was started in a host or a pod.
type Process struct {
	// Name is the name of the program, with a number if the name was used before.
	Name string
	// Stdout and Stderr are the paths of output files in the artefacts. They are equal for programs
	// whose output is a log.
	Stdout, Stderr string

	again func(context.Context) (*Process, error)
	// handle is the program. It uses a pidfd, so it never means another process. enter is the
	// nsenter that started the program.
	handle, enter *os.Process
	exited        chan struct{}
	err           error
}

// begin starts a command whose first word is nsenter. Its output goes to files in dir: two files if
// split is set, otherwise one.
func begin(cmd *exec.Cmd, dir, name string, split bool) (*Process, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}

	p := &Process{Name: name, exited: make(chan struct{})}
	out, err := createLog(dir, name)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p.Stdout, p.Stderr = out.Name(), out.Name()
	cmd.Stdout, cmd.Stderr = out, out
	if split {
		errOut, err := createLog(dir, name+".err")
		if err != nil {
			return nil, err
		}
		defer errOut.Close()
		p.Stderr, cmd.Stderr = errOut.Name(), errOut
	}

	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p.enter = cmd.Process

	go func() {
		p.err = cmd.Wait()
		close(p.exited)
	}()

	// nsenter forks once, to enter the PID namespace. Its child is the program.
	children := fmt.Sprintf("/proc/%d/task/%d/children", cmd.Process.Pid, cmd.Process.Pid)
	err = Until(context.Background(), 5*time.Second, func() error {
		select {
		case <-p.exited:
			return nil
		default:
		}
		b, err := os.ReadFile(children)
		if err != nil {
			return err
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
		if err != nil {
			return err
		}
		p.handle, err = os.FindProcess(pid)
		return err
	})
	if err != nil {
		_ = cmd.Cancel()
		return nil, fmt.Errorf("start %s: find its process: %w", name, err)
	}

	return p, nil
}

// createLog creates the first file of name.log, name-2.log and so on that does not exist.
func createLog(dir, name string) (*os.File, error) {
	for i := 1; ; i++ {
		path := filepath.Join(dir, name+".log")
		if i > 1 {
			path = filepath.Join(dir, fmt.Sprintf("%s-%d.log", name, i))
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		return f, err
	}
}

// PID returns the process id on the machine, or 0 if the process ended before its id was read.
func (p *Process) PID() int {
	if p.handle == nil {
		return 0
	}
	return p.handle.Pid
}

// Signal sends a signal. It does nothing if the process has ended.
func (p *Process) Signal(s syscall.Signal) error {
	if p.handle == nil {
		return nil
	}
	if err := p.handle.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", p.Name, err)
	}
	if s == syscall.SIGCONT || s == syscall.SIGKILL {
		// nsenter stops itself when the program is stopped. Continue it, so that it can reap the
		// program.
		_ = p.enter.Signal(syscall.SIGCONT)
	}
	return nil
}

// Wait waits until the process ends and returns its error, which is nil for exit status 0.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.exited:
		return p.err
	case <-ctx.Done():
		return fmt.Errorf("wait for %s: %w", p.Name, ctx.Err())
	}
}

// Running reports whether the process has not ended yet.
func (p *Process) Running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// Kill sends SIGKILL and waits until the process has ended.
func (p *Process) Kill(ctx context.Context) error {
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	err := p.Wait(ctx)
	var status *exec.ExitError
	if errors.As(err, &status) {
		return nil
	}
	return err
}

// Term sends SIGTERM and waits until the process has ended. It returns an error unless the exit
// status is 0.
func (p *Process) Term(ctx context.Context) error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return p.Wait(ctx)
}

// Restart starts the same program with the same arguments again. It returns an error if the process
// still runs.
func (p *Process) Restart(ctx context.Context) (*Process, error) {
	if p.Running() {
		return nil, fmt.Errorf("restart %s: it still runs", p.Name)
	}
	return p.again(ctx)
}

// WaitLine waits until the output contains text.
func (p *Process) WaitLine(ctx context.Context, text string, timeout time.Duration) error {
	err := Until(ctx, timeout, func() error {
		b, err := os.ReadFile(p.Stdout)
		if err != nil || bytes.Contains(b, []byte(text)) {
			return err
		}
		if !p.Running() {
			return Stop(fmt.Errorf("it has ended: %w: %s", p.Ended(), p.Tail()))
		}
		return fmt.Errorf("no line %q", text)
	})
	if err != nil {
		return fmt.Errorf("wait for %s: %w", p.Name, err)
	}
	return nil
}

// Result ends the process with SIGTERM and decodes the last line of its output into v.
func (p *Process) Result(ctx context.Context, v any) error {
	end := p.Term(ctx)
	b, err := os.ReadFile(p.Stdout)
	if err != nil {
		return err
	}
	lines := bytes.Split(bytes.TrimSpace(b), []byte("\n"))
	if end != nil {
		_ = json.Unmarshal(lines[len(lines)-1], v)
		return fmt.Errorf("%s: %w: %s", p.Name, end, p.Tail())
	}
	if err := json.Unmarshal(lines[len(lines)-1], v); err != nil {
		return fmt.Errorf("result of %s: %w", p.Name, err)
	}
	return nil
}

// errStatus0 is the error of a program that ended unexpectedly, with exit status 0.
var errStatus0 = errors.New("exit status 0")

// Ended returns the error of a process that ended unexpectedly. It is never nil.
func (p *Process) Ended() error {
	if p.err == nil {
		return errStatus0
	}
	return p.err
}

// Tail returns the last 2,000 bytes of the standard error.
func (p *Process) Tail() string {
	b, _ := os.ReadFile(p.Stderr)
	if len(b) > 2000 {
		b = b[len(b)-2000:]
	}
	return strings.TrimSpace(string(b))
}
