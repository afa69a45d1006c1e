// Package cluster keeps a cluster of virtual machines for developers.
//
// Usage:
//
//	kvlab up [--nodes N] [--userspace N,…] [--bare] [--no-veil] [--service-proxy KIND]
//	                                start it and return when its nodes are ready
//	kvlab ssh node-1 [COMMAND]    a shell on a node
//	kvlab kubectl ARGS            as the cluster's administrator
//	kvlab down                    end it and report the frames that its leak oracle saw; the exit
//	                              status is 1 if a frame was not allowed or some were not seen
//
// Exit status 2 means a wrong command line; nothing was done then. ssh and kubectl return the exit
// status of the program.
//
// The cluster belongs to one process in the background. When that process ends for any reason,
// every machine ends. Everything is in out/vm/cluster, or in DIR of `kvlab VERB --dir DIR …`.
package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/program"
	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/vm"
	"github.com/kubeveil/kubeveil/pkg/leak"
)

// state holds what other invocations need; it exists while the cluster is ready.
type state struct {
	PID     int                 `json:"pid"`
	SSH     map[string][]string `json:"ssh"`
	Kubectl []string            `json:"kubectl"`
}

// end describes how a cluster ended.
type end struct {
	Oracle leak.Result `json:"oracle"`
	// Problem is empty if everything was removed and the oracle saw only allowed frames. Plaintext
	// of pods is a problem, and so is traffic between hosts outside of the control plane.
	Problem string `json:"problem,omitempty"`
}

// up starts the process that owns the cluster, with args as its flags, and waits until it is ready.
func up(dir string, args []string) error {
	if _, err := read(dir); err == nil {
		return errors.New("a cluster is there already: `make cluster-down` ends it")
	}
	if _, err := program.Folder(dir); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	log, err := os.Create(filepath.Join(dir, "cluster.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(os.Args[0], append([]string{"serve", "--dir", dir}, args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return follow(ctx, dir, log.Name(), cmd, ended)
}

// follow shows the log until the cluster is ready or its process has ended.
func follow(ctx context.Context, dir, log string, cmd *exec.Cmd, ended <-chan error) error {
	shown := 0
	show := func() {
		b, _ := os.ReadFile(log)
		os.Stderr.Write(b[min(shown, len(b)):])
		shown = len(b)
	}
	tick := time.NewTicker(300 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			show()
			return fmt.Errorf("the cluster did not start: %w", err)
		case <-ctx.Done():
			_ = cmd.Process.Signal(syscall.SIGTERM)
			err := <-ended
			show()
			return fmt.Errorf("interrupted: %w", cmp.Or(err, context.Cause(ctx)))
		case <-tick.C:
			show()
			if _, err := read(dir); err == nil {
				return nil
			}
		}
	}
}

// serve owns the cluster.
func serve(dir string, o vm.ClusterConfig) error {
	o.Dir, o.Log = dir, slog.New(slog.NewTextHandler(os.Stderr, nil))
	lock, err := os.Create(filepath.Join(dir, "lock"))
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("another process owns %s: %w", dir, err)
	}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	c, err := vm.New(ctx, o)
	if err != nil {
		return err
	}

	s := state{PID: os.Getpid(), SSH: map[string][]string{}, Kubectl: c.KubectlCommand(ctx).Args}
	for _, m := range c.Machines {
		s.SSH[m.Name] = m.SSH(ctx).Args
	}

	if err := write(dir, "state.json", s); err != nil {
		_, end := c.Close()
		return errors.Join(err, end)
	}

	<-ctx.Done()
	result, err := c.Close()
	e := end{Oracle: result}
	if err := errors.Join(err, result.Err()); err != nil {
		e.Problem = err.Error()
	}

	return write(dir, "end.json", e)
}

func write(dir, name string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// errNone means that no cluster is ready.
var errNone = errors.New("no cluster is ready: `make cluster-up` starts one")

// read returns the state of the cluster that is ready: its process holds the lock. With errNone it
// returns the state of a cluster that has ended, if there is one.
func read(dir string) (state, error) {
	var s state
	b, err := os.ReadFile(filepath.Join(dir, "state.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return s, errNone
	}
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return s, err
	}
	lock, err := os.Open(filepath.Join(dir, "lock"))
	if err != nil {
		return s, errNone
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_SH|unix.LOCK_NB); err == nil {
		return s, errNone
	}
	return s, nil
}

// down signals the owner to end and waits for its end.
func down(dir string) error {
	s, err := read(dir)
	if errors.Is(err, errNone) {
		if s.PID != 0 {
			return verdict(dir) // the cluster has ended already
		}
		fmt.Fprintln(os.Stderr, "no cluster is there")
		return nil
	}

	if err != nil {
		return err
	}
	owner, err := os.FindProcess(s.PID)
	if err != nil {
		return err
	}
	if err := owner.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("end process %d: %w", s.PID, err)
	}

	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	err = lab.Until(ctx, 90*time.Second, func() error {
		if _, err := read(dir); errors.Is(err, errNone) {
			return nil
		}
		return fmt.Errorf("process %d has not ended", s.PID)
	})
	if err != nil {
		return err
	}

	return verdict(dir)
}

// verdict describes how the cluster ended.
func verdict(dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, "end.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the cluster ended without a verdict of its leak oracle: its last log "+
			"lines are in %s", filepath.Join(dir, "cluster.log"))
	}
	if err != nil {
		return err
	}
	var e end
	if err := json.Unmarshal(b, &e); err != nil {
		return err
	}
	fmt.Printf("%d frames, %d plaintext: %v\n", e.Oracle.Frames, e.Oracle.Plaintext, e.Oracle.Kinds)
	if e.Problem != "" {
		return errors.New(e.Problem)
	}
	return nil
}

func ssh(dir string, args []string) error {
	s, err := read(dir)
	if err != nil {
		return err
	}
	node := "node-1"
	if len(args) > 0 {
		node, args = args[0], args[1:]
	}
	command := s.SSH[node]
	if command == nil {
		return fmt.Errorf("no machine %q", node)
	}
	return attach(append(command, args...))
}

// attach runs a program on this terminal.
func attach(words []string) error {
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd.Run()
}
