package nodetest

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

// process returns the queue of another test process, with its own open files.
func process(t *testing.T, dir string) *queue {
	t.Helper()
	q := &queue{dir: dir}
	errtest.Must(t, q.open())
	t.Cleanup(func() { q.gate.Close() })
	return q
}

// enter takes one of two slots.
func enter(t *testing.T, q *queue) *os.File {
	t.Helper()
	slot, err := q.enter(t.Context(), 2)
	errtest.Must(t, err)
	t.Cleanup(func() { slot.Close() })
	return slot
}

// waits checks that done stays open until release is called, and is closed afterwards.
func waits(t *testing.T, what string, done <-chan struct{}, release func()) {
	t.Helper()
	select {
	case <-done:
		t.Fatalf("%s did not wait", what)
	case <-time.After(200 * time.Millisecond):
	}
	release()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatalf("%s waits for ever", what)
	}
}

// entering starts to wait for a slot. It returns a channel that is closed when q has got the slot.
func entering(t *testing.T, q *queue) <-chan struct{} {
	t.Helper()
	entered := make(chan struct{})
	go func() {
		defer close(entered)
		if slot, err := q.enter(t.Context(), 2); err != nil {
			t.Error(err)
		} else {
			slot.Close()
		}
	}()
	return entered
}

func TestLabsOfAllProcessesShareTheSlots(t *testing.T) {
	dir := t.TempDir()
	a, b := process(t, dir), process(t, dir)
	enter(t, a)
	second := enter(t, b)

	waits(t, "a third lab", entering(t, a), func() { second.Close() })
}

func TestTestThatRunsAloneWaitsForLabsAndKeepsOthersOut(t *testing.T) {
	dir := t.TempDir()
	a, b := process(t, dir), process(t, dir)
	running := enter(t, b)

	drained := make(chan struct{})
	go func() {
		defer close(drained)
		errtest.Check(t, a.drain())
	}()
	waits(t, "a test that runs alone", drained, func() { running.Close() })
	if err := a.drain(); err != nil { // the next one, at once
		t.Fatal(err)
	}

	waits(t, "a lab of another process", entering(t, b), func() { enter(t, a) })
}

func TestTestThatRanAloneLetsOthersIn(t *testing.T) {
	dir := t.TempDir()
	a, b := process(t, dir), process(t, dir)
	errtest.Must(t, a.drain())

	waits(t, "a lab of another process", entering(t, b), func() {
		errtest.Check(t, a.unlockGate())
	})
}

func TestEndOfAProcessLetsOthersIn(t *testing.T) {
	dir := t.TempDir()
	a, b := process(t, dir), process(t, dir)
	errtest.Must(t, a.drain())

	if err := flock(b.gate, unix.LOCK_EX|unix.LOCK_NB); err == nil {
		t.Fatal("the gate is open while a test runs alone")
	}
	a.gate.Close()
	enter(t, b)
}

func TestPartsOfATestThatRunsAloneNeedNoSlot(t *testing.T) {
	var q queue
	q.setAlone("TestServices")
	for name, want := range map[string]bool{"TestServices": true, "TestServices/ebpf/policies": true,
		"TestServicesOutliveVeild": false} {
		if q.isAlone(name) != want {
			t.Errorf("%s runs alone: %t", name, !want)
		}
	}
	q.setAlone("")
	if q.isAlone("TestServices") {
		t.Error("a test that has ended runs alone")
	}
}

func TestQueueThatIsNotOpenSaysSo(t *testing.T) {
	var q queue
	if _, err := q.enter(t.Context(), 1); err == nil {
		t.Error("it takes a slot")
	}
	if err := q.drain(); err == nil {
		t.Error("it runs alone")
	}
}
