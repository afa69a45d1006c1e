package supervisor

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// A veil-wg that is started while the one before it is still ending its processes takes
// over, and does not have to be started again.
func TestSupervisorTakesOverFromOneThatEnds(t *testing.T) {
	dir := t.TempDir()
	before, held, err := tryLock(filepath.Join(dir, "supervisor.lock"))
	if err != nil || !held {
		t.Fatal(held, err)
	}

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	log := &lines{c: make(chan string, 10)}
	s := &Supervisor{Dir: dir, TrustDisk: true, Log: slog.New(slog.NewTextHandler(log, nil))}
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	if line := <-log.c; !strings.Contains(line, "waiting for its end") {
		t.Errorf("it says %q, want that it waits", line)
	}

	before.Close()
	select {
	case err := <-ended:
		t.Fatalf("it ended: %v", err)
	case line := <-log.c:
		if !strings.Contains(line, "serving device requests") {
			t.Errorf("it says %q, want that it serves", line)
		}
	}

	stop()
	errtest.Check(t, <-ended)
}

func TestSupervisorRefusesToRunBesideOneThatStays(t *testing.T) {
	dir := t.TempDir()
	before, held, err := tryLock(filepath.Join(dir, "supervisor.lock"))
	if err != nil || !held {
		t.Fatal(held, err)
	}
	defer before.Close()
	s := &Supervisor{Dir: dir, TrustDisk: true, Log: slog.New(slog.DiscardHandler),
		patience: time.Millisecond}
	if err := s.Run(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "another veil-wg serves") {
		t.Errorf("run beside another: %v", err)
	}
	ended, stop := context.WithCancel(t.Context())
	stop()
	s.patience = time.Hour
	if err := s.Run(ended); err != nil {
		t.Errorf("told to end while it waits: %v", err)
	}
}

// lines is a writer that sends each write to a channel.
type lines struct{ c chan string }

func (l *lines) Write(p []byte) (int, error) {
	l.c <- string(p)
	return len(p), nil
}

// started is a Supervisor that runs.
type started struct {
	log   *lines
	stop  context.CancelFunc
	ended chan error
}

func startSupervisor(t *testing.T, dir, instance string) *started {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	r := &started{log: &lines{c: make(chan string, 100)}, stop: stop, ended: make(chan error, 1)}
	s := &Supervisor{Dir: dir, TrustDisk: true, Instance: instance,
		Log: slog.New(slog.NewTextHandler(r.log, nil))}
	if instance != "" {
		s.patience = 50 * time.Millisecond // after which it waits on
	}
	go func() { r.ended <- s.Run(ctx) }()
	t.Cleanup(stop)
	return r
}

// says waits until the supervisor logs a text.
func (r *started) says(t *testing.T, text string) {
	t.Helper()
	for timeout := time.After(10 * time.Second); ; {
		select {
		case line := <-r.log.c:
			if strings.Contains(line, text) {
				return
			}
		case err := <-r.ended:
			t.Fatalf("it ended: %v, want that it says %q", err, text)
		case <-timeout:
			t.Fatalf("it does not say %q", text)
		}
	}
}

func (r *started) end(t *testing.T) {
	t.Helper()
	r.stop()
	errtest.Check(t, <-r.ended)
}

const (
	serves = "serving device requests"
	waits  = "waiting"
)

// A pod's veil-wg leaves the devices to the veil-wg of a newer pod and keeps running. If its
// container starts again, it waits. When the newer veil-wg has ended, it serves the devices again,
// until the next newer one.
func TestOlderSupervisorWaitsForTheNewer(t *testing.T) {
	dir := t.TempDir()
	ready := func(id string, want bool) {
		t.Helper()
		nettest.Until(t, 5*time.Second, "readiness", func() bool {
			return (Ready(dir, id) == nil) == want
		})
	}

	older := startSupervisor(t, dir, "pod-z")
	older.says(t, serves)
	ready("pod-z", true)

	newer := startSupervisor(t, dir, "pod-a")
	older.says(t, "a newer veil-wg takes the devices over")
	newer.says(t, serves)
	ready("pod-a", true)
	ready("pod-z", false)

	older.end(t)
	older = startSupervisor(t, dir, "pod-z")
	older.says(t, waits)
	if err := Ready(dir, "pod-z"); err == nil {
		t.Error("an instance that waits for a newer one is ready")
	}

	newer.end(t)
	older.says(t, serves)
	newer = startSupervisor(t, dir, "pod-a")
	older.says(t, "a newer veil-wg takes the devices over")
	newer.says(t, serves)
	older.end(t)
	newer.end(t)
}

// Without the name of a pod, each start counts as newer than all earlier starts.
func TestNewerStartTakesOver(t *testing.T) {
	dir := t.TempDir()
	first := startSupervisor(t, dir, "")
	first.says(t, serves)
	second := startSupervisor(t, dir, "")
	second.says(t, serves)
	first.end(t)
	second.end(t)
	if left, _ := filepath.Glob(filepath.Join(dir, "*"+instanceSuffix)); len(left) > 0 {
		t.Errorf("files are left: %v", left)
	}
}

// A veil-wg of a release without handover holds the lock and is silent. The newer one is ready, so
// that a rollout goes on and ends the older.
func TestSupervisorIsReadyBesideOneThatKnowsNoHandover(t *testing.T) {
	dir := t.TempDir()
	before, held, err := tryLock(filepath.Join(dir, "supervisor.lock"))
	if err != nil || !held {
		t.Fatal(held, err)
	}
	s := startSupervisor(t, dir, "pod-a")
	s.says(t, waits)
	nettest.Until(t, 5*time.Second, "readiness", func() bool { return Ready(dir, "pod-a") == nil })
	before.Close()
	s.says(t, serves)
	s.end(t)
}

func TestInstancesAreNumberedByTheirFirstStart(t *testing.T) {
	dir := t.TempDir()
	numberOf := func(id string) int {
		t.Helper()
		i, err := register(dir, id)
		errtest.Must(t, err)
		defer i.close()
		return i.number
	}
	if a, b, again := numberOf("a"), numberOf("b"), numberOf("a"); b <= a || again != a {
		t.Errorf("numbers %d, then %d, then %d for the first again", a, b, again)
	}

	filetest.Write(t, filepath.Join(dir, "bad"+instanceSuffix), []byte("x"), 0o600)
	last := 0
	for n := range 2 * maxInstances {
		last = numberOf(fmt.Sprint("p", n))
	}
	known, err := numbers(dir)
	if err != nil || len(known) > maxInstances+1 || known[fmt.Sprint("p", 2*maxInstances-1)] != last {
		t.Errorf("known %v, %v", known, err)
	}

	if _, err := register(dir, "../x"); err == nil {
		t.Error("a path is taken for a name")
	}
	i, err := register(dir, "twice")
	errtest.Must(t, err)
	defer i.close()
	if _, err := register(dir, "twice"); err == nil {
		t.Error("two processes are one instance")
	}
}
