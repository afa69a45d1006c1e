package nodetest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

const (
	// starting bounds how many labs start at the same time. A starting API server keeps a CPU busy
	// for seconds, which disturbs the measurements of other labs.
	starting = 2
	// patience bounds how long a lab waits for other labs. The time limit of go test is shorter.
	patience = time.Hour
)

// queue orders the labs of all test processes of this machine by files that flock(2) locks. The
// kernel unlocks the files of a process that has ended.
//
// Each running lab holds a slot. A test holds the gate while it waits for a slot. A test that runs
// alone takes the gate and waits until every slot is free. It keeps the gate until a test of the
// same process takes a slot, or until NotAlone is called. Tests that run alone come first in a
// process, so no other lab runs between two of them.
type queue struct {
	dir string
	// mu is held while a test waits for the gate or holds it, because flock(2) does not exclude two
	// goroutines with the same open file.
	mu   sync.Mutex
	gate *os.File
	// alone is the name of the test that runs alone. Nil and "" mean that no test runs alone.
	alone atomic.Pointer[string]
}

// labs is the queue of this process.
var labs = queue{dir: os.TempDir()}

// Main is nettest.Run for packages whose tests make labs. It returns the status for os.Exit.
func Main(m *testing.M) int {
	if err := labs.open(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer labs.gate.Close()
	return nettest.Run(m, controls.Close)
}

// Alone makes a test run without labs of other tests, in this and all other processes. Call it
// first. The test must not be parallel. Its subtests may be parallel, and run beside each other.
func Alone(t *testing.T) {
	t.Helper()
	begin := time.Now()
	errtest.Must(t, labs.drain())
	logWait(t, begin)

	labs.setAlone(t.Name())
	t.Cleanup(func() { labs.setAlone("") })
}

// NotAlone lets labs of other processes run beside the rest of a test that called Alone.
func NotAlone(t *testing.T) {
	t.Helper()
	errtest.Must(t, labs.unlockGate())
}

// WaitTurn waits until a lab may run: fewer than -parallel labs run on this machine, and no test
// runs alone. The lab's slot is held until the test ends. NewLab and LongLab call WaitTurn. It does
// nothing for a test that runs alone.
func WaitTurn(t *testing.T) {
	t.Helper()
	if labs.isAlone(t.Name()) {
		return
	}
	slots, err := parallel()
	errtest.Must(t, err)

	begin := time.Now()
	slot, err := labs.enter(t.Context(), slots)
	errtest.Must(t, err)
	t.Cleanup(func() { slot.Close() })
	logWait(t, begin)
}

// logWait logs how long a test waited. hack/testsummary subtracts this time from the test's time.
func logWait(t *testing.T, begin time.Time) {
	t.Helper()
	t.Logf("waited %.1f s for other labs", time.Since(begin).Seconds())
}

// parallel returns the flag -parallel of go test: how many tests of a package may run in parallel.
func parallel() (int, error) {
	if f := flag.Lookup("test.parallel"); f != nil {
		if n, ok := f.Value.(flag.Getter).Get().(int); ok {
			return n, nil
		}
	}
	return 0, errors.New("go test has no flag -parallel: is it called otherwise now?")
}

// open opens the gate.
func (q *queue) open() (err error) {
	q.gate, err = openLock(filepath.Join(q.dir, "kubeveil-lab-gate.lock"))
	return err
}

// lockGate locks the gate. It returns directly if this process holds the gate. The caller holds
// q.mu.
func (q *queue) lockGate() error {
	if q.gate == nil {
		return errors.New("the queue of labs is not open: let TestMain call nodetest.Main")
	}
	return flock(q.gate, unix.LOCK_EX)
}

// unlockGate unlocks the gate. It does nothing if this process does not hold the gate.
func (q *queue) unlockGate() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return flock(q.gate, unix.LOCK_UN)
}

// enter waits for one of n slots and returns its file. The slot is locked until the file is closed.
func (q *queue) enter(ctx context.Context, n int) (*os.File, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.lockGate(); err != nil {
		return nil, err
	}
	slot, err := q.take(ctx, "slot", n)
	return slot, errors.Join(err, flock(q.gate, unix.LOCK_UN))
}

// drain locks the gate and waits until every slot is free. The gate stays locked.
func (q *queue) drain() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.lockGate(); err != nil {
		return err
	}
	// Wait for all slot files, because another process may use more slots than this process.
	slots, err := filepath.Glob(q.path("slot", "*"))
	if err != nil {
		return err
	}
	for _, path := range slots {
		slot, err := openLock(path)
		if err != nil {
			return err
		}
		err = flock(slot, unix.LOCK_EX)
		slot.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// take waits for one of the n lock files of a kind and returns it. It is locked until it is closed.
func (q *queue) take(ctx context.Context, kind string, n int) (taken *os.File, err error) {
	err = lab.Until(ctx, patience, func() error {
		for i := range n {
			f, err := openLock(q.path(kind, fmt.Sprint(i)))
			if err != nil {
				return lab.Stop(err)
			}
			if flock(f, unix.LOCK_EX|unix.LOCK_NB) == nil {
				taken = f
				return nil
			}
			f.Close()
		}
		return fmt.Errorf("all of %d are taken: kubeveil-lab-%s", n, kind)
	})
	return taken, err
}

func (q *queue) path(kind, number string) string {
	return filepath.Join(q.dir, fmt.Sprintf("kubeveil-lab-%s-%s.lock", kind, number))
}

func (q *queue) setAlone(name string) { q.alone.Store(&name) }

// isAlone reports whether the test called name, or the test of this subtest, runs alone.
func (q *queue) isAlone(name string) bool {
	alone := q.alone.Load()
	test, _, _ := strings.Cut(name, "/")
	return alone != nil && test == *alone
}

func openLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open a lock of labs: %w", err)
	}
	return f, nil
}

// flock calls flock(2), and repeats the call after a signal.
func flock(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("lock %s: %w", f.Name(), err)
		}
	}
}
