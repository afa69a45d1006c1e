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
	"github.com/kubeveil/kubeveil/internal/nettest"
)

const (
	// starting bounds how many labs start at a time: an API server that starts keeps a processor
	// busy for seconds, and what others measure meanwhile suffers.
	starting = 2
	// patience bounds how long a lab waits for other labs. The limit of go test is shorter.
	patience = time.Hour
)

// queue orders the labs of all test processes of this machine by files that flock(2) locks. The
// kernel unlocks the files of a process that has ended.
//
// Each lab that runs holds a slot. A test holds the gate while it waits for a slot. A test that runs
// alone takes the gate, waits until every slot is free, and keeps the gate until a test of the same
// process takes a slot or NotAlone is called: tests that run alone come first in a process, and no
// other lab comes between two of them.
type queue struct {
	dir string
	// mu is held while a test waits for the gate or for what is behind it: flock(2) does not
	// exclude two users of one open file.
	mu   sync.Mutex
	gate *os.File
	// alone is the name of the test that runs alone; nil and "" mean that none does.
	alone atomic.Pointer[string]
}

// labs is the queue of this process.
var labs = queue{dir: os.TempDir()}

// Main is nettest.Run for packages whose tests make labs. Its result is for os.Exit.
func Main(m *testing.M) int {
	if err := labs.open(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer labs.gate.Close()
	return nettest.Run(m, controls.Close)
}

// Alone makes a test run while no lab of another test does, in this process or another one. It must
// not be parallel; its subtests may be, and run beside each other. Call it first.
func Alone(t *testing.T) {
	t.Helper()
	begin := time.Now()
	if err := labs.drain(); err != nil {
		t.Fatal(err)
	}
	logWait(t, begin)

	labs.setAlone(t.Name())
	t.Cleanup(func() { labs.setAlone("") })
}

// NotAlone lets labs of other processes run beside what is left of a test that called Alone.
func NotAlone(t *testing.T) {
	t.Helper()
	if err := labs.unlockGate(); err != nil {
		t.Fatal(err)
	}
}

// WaitTurn waits until a lab may run: fewer than -parallel do on this machine, and no test runs
// alone. It holds the place until the test ends. A test that NewLab or LongLab makes a lab for has
// its place; one that runs alone needs none.
func WaitTurn(t *testing.T) {
	t.Helper()
	if labs.isAlone(t.Name()) {
		return
	}
	slots, err := parallel()
	if err != nil {
		t.Fatal(err)
	}

	begin := time.Now()
	slot, err := labs.enter(t.Context(), slots)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slot.Close() })
	logWait(t, begin)
}

// logWait logs how long a test waited. hack/testsummary subtracts this time from the test's time.
func logWait(t *testing.T, begin time.Time) {
	t.Helper()
	t.Logf("waited %.1f s for other labs", time.Since(begin).Seconds())
}

// parallel returns how many tests of a package may run at once: the flag -parallel of go test.
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

// lockGate waits for the gate; nothing changes if this process has it. q.mu is held.
func (q *queue) lockGate() error {
	if q.gate == nil {
		return errors.New("the queue of labs is not open: let TestMain call nodetest.Main")
	}
	return flock(q.gate, unix.LOCK_EX)
}

// unlockGate lets go of the gate; nothing changes if this process does not have it.
func (q *queue) unlockGate() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return flock(q.gate, unix.LOCK_UN)
}

// enter waits for one of n slots and returns its file, locked until it is closed.
func (q *queue) enter(ctx context.Context, n int) (*os.File, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.lockGate(); err != nil {
		return nil, err
	}
	slot, err := q.take(ctx, "slot", n)
	return slot, errors.Join(err, flock(q.gate, unix.LOCK_UN))
}

// drain takes the gate, waits until every slot is free, and keeps the gate.
func (q *queue) drain() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.lockGate(); err != nil {
		return err
	}
	// Others may have more slots than we: all files count.
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

// take waits for one of the n files of a kind and returns it, locked until it is closed.
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

// isAlone reports whether a test is the one that runs alone, or a part of it.
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

// flock is flock(2) that signals do not end.
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
