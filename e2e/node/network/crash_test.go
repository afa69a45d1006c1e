package network_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// makerEnv names the environment variable that makes TestMaker the process that crashes. Its value
// is the folder for the lab's artefacts.
const makerEnv = "KUBEVEIL_LAB_MAKER"

// TestMaker does nothing unless makerEnv is set. Then it makes hosts, starts a program in one,
// prints the program's process id and the host's network namespace, and waits.
func TestMaker(t *testing.T) {
	dir := os.Getenv(makerEnv)
	if dir == "" {
		return // only TestCrashLeavesNothingRunning sets the variable
	}
	l, err := lab.New(t.Context(), lab.Options{Nodes: -1, NoAPIServer: true, Dir: dir})
	errtest.Must(t, err)
	t.Cleanup(func() {
		errtest.Check(t, l.Close())
	})
	p, err := l.Outside.Start(t.Context(), "sleep", "600")
	errtest.Must(t, err)
	fmt.Printf("made %d in %s\n", p.PID(), l.Outside.NetNS())
	_, _ = io.Copy(io.Discard, os.Stdin) // wait; standard input ends if the parent ends first
}

// runs reports whether a process runs. A process that has ended and was not reaped does not run.
func runs(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, found := bytes.Cut(stat, []byte(") "))
	return err == nil && found && !bytes.HasPrefix(state, []byte("Z"))
}

// If a process that made a lab is killed, it cannot clean up. The hosts and the processes in them
// end nevertheless.
func TestCrashLeavesNothingRunning(t *testing.T) {
	nettest.NeedRoot(t)
	nodetest.WaitTurn(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	self, err := os.Executable()
	errtest.Must(t, err)

	maker := exec.CommandContext(ctx, self, "-test.run=^TestMaker$")
	maker.Env = append(os.Environ(), makerEnv+"="+filepath.Join(t.TempDir(), "lab"))
	var stderr bytes.Buffer
	maker.Stderr = &stderr
	errtest.Must(t, errtest.Of(maker.StdinPipe()))
	stdout, err := maker.StdoutPipe()
	errtest.Must(t, err)
	errtest.Must(t, maker.Start())

	var sleeper, holder int
	var said []string
	for lines := bufio.NewScanner(stdout); holder == 0 && lines.Scan(); {
		said = append(said, lines.Text())
		_, _ = fmt.Sscanf(lines.Text(), "made %d in /proc/%d/ns/net", &sleeper, &holder)
	}

	t.Cleanup(func() {
		if holder != 0 && runs(holder) {
			_ = syscall.Kill(holder, syscall.SIGKILL) // the init of all processes in the host
		}
		for _, tree := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
			groups, _ := filepath.Glob(fmt.Sprintf("%s/kubeveil-lab-%d-*", tree, maker.Process.Pid))
			for _, group := range groups {
				_ = os.Remove(group) // empty; the next lab would remove it
			}
		}
	})

	if holder == 0 {
		t.Fatalf("no lab was made: %v: %q %s", maker.Wait(), said, &stderr)
	}
	if !runs(sleeper) || !runs(holder) {
		t.Fatalf("process %d and its host's first, %d, do not run: nothing is shown by their end",
			sleeper, holder)
	}
	errtest.Must(t, maker.Process.Kill())

	_ = maker.Wait() // killed
	err = lab.Until(ctx, time.Minute, func() error {
		if runs(sleeper) || runs(holder) {
			return fmt.Errorf("process %d runs: %v; its host's first, %d: %v", sleeper,
				runs(sleeper), holder, runs(holder))
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
