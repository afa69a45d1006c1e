package wgdevice_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/worker"
)

// handshakes returns the times of the last handshakes that the node's device reports.
func (n *testNode) handshakes() (out []string) {
	n.t.Helper()
	n.Run(n.t, func() error {
		c, err := net.Dial("unix", filepath.Join(abi.WireGuardSocketDir, device+".sock"))
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := fmt.Fprint(c, "get=1\n\n"); err != nil {
			return err
		}
		s := bufio.NewScanner(c)
		for s.Scan() && !strings.HasPrefix(s.Text(), "errno=") {
			if strings.HasPrefix(s.Text(), "last_handshake_time") {
				out = append(out, s.Text())
			}
		}
		if errors.Is(s.Err(), unix.ECONNRESET) { // the process ended while it answered
			out = nil
			return nil
		}
		return s.Err()
	})
	return out
}

// ready returns the result of the readiness probe of an instance.
func (n *testNode) ready(instance string) bool {
	cmd := exec.Command(veilWG, "ready", "--instance", instance)
	var err error
	n.Do(func() error { err = cmd.Run(); return nil })
	return err == nil
}

// A rollout of veil-wg: the newer pod takes the device over with its sessions, the older one stays
// without it, also when its container starts again, and takes its place when it is killed.
func TestNewerWorkerTakesOverAndTheOlderWaits(t *testing.T) {
	t.Setenv(engineEnv, worker.EngineKubeveil)
	a, b := pair(t, ipv4)
	arrivals, _ := stream(t, a, b, 4001)
	back, _ := stream(t, b, a, 4002)
	flows(t, "traffic", arrivals, time.Time{})
	flows(t, "traffic back", back, time.Time{})
	before, links := b.handshakes(), b.links()

	upgraded := func(instance string) {
		t.Helper()
		older, pid := b.super, b.child()
		b.startWorker("--instance", instance)
		nettest.Until(t, 15*time.Second, "readiness of the newer", func() bool {
			return b.ready(instance)
		})
		if now := b.child(); now == pid || now == 0 {
			t.Fatalf("process %d serves the device, before %d", now, pid)
		}
		if older.ProcessState != nil || syscall.Kill(older.Process.Pid, 0) != nil {
			t.Fatal("the older veil-wg has ended by itself")
		}
		flows(t, "traffic after the handover", arrivals, time.Now())
		flows(t, "traffic back after the handover", back, time.Now())
	}
	same := func(when string) {
		t.Helper()
		if after := b.handshakes(); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Fatalf("%s: last handshakes %v, before %v", when, after, before)
		}
	}
	end := func(cmd *exec.Cmd) {
		t.Helper()
		cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Fatalf("veil-wg that was told to end: %v", err)
		}
	}

	unnamed := b.super
	upgraded("pod-a")
	same("after the first upgrade")
	end(unnamed)
	podA := b.super
	upgraded("pod-b")
	podB := b.super
	same("after the second upgrade")

	// The kubelet starts the older container again.
	end(podA)
	b.startWorker("--instance", "pod-a")
	podA = b.super
	pid := b.child()
	nettest.Until(t, 5*time.Second, "a veil-wg that waits", func() bool {
		return strings.Contains(b.log.String(), "another veil-wg serves the directory")
	})
	flows(t, "traffic while it waits", arrivals, time.Now().Add(2*supersededPoll))
	if b.ready("pod-a") || !b.ready("pod-b") || b.child() != pid {
		t.Fatal("the older pod's container took the device after its restart")
	}
	same("after a restart of the older container")

	// The newer container is killed: with it all of its processes.
	podB.Process.Kill()
	podB.Wait()
	b.killChild(syscall.SIGKILL)
	nettest.Until(t, recovery+supersededPoll, "a process of the older pod", func() bool {
		now := b.child()
		return now != 0 && now != pid
	})
	flows(t, "traffic after the death", arrivals, time.Now())
	nettest.Until(t, 5*time.Second, "the older pod ready", func() bool { return b.ready("pod-a") })
	nettest.Until(t, 5*time.Second, "a handshake", func() bool {
		before = b.handshakes()
		return len(before) > 0 && !strings.HasSuffix(before[0], "=0")
	})

	upgraded("pod-b")
	same("after the newer one came back")
	end(podA)
	flows(t, "traffic at the end", arrivals, time.Now())
	same("at the end")
	if after := b.links(); after != links {
		t.Errorf("device and routes changed:\nbefore %s\nafter %s", links, after)
	}
}

// supersededPoll is the time in which an older veil-wg notices that the newer one has ended.
const supersededPoll = 200 * time.Millisecond
