package pod

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
)

// If a plugin hangs during an ADD and holds the lock of its pod, the daemon handles the other pods
// and tries that pod again later.
func TestDaemonDoesNotWaitForAPluginThatHangs(t *testing.T) {
	n := newNode(t)
	r, ns := newRecord(t, "c1", pod4, pod6)
	n.attach(r, ns)
	var unlock func()
	n.must(func() (err error) {
		unlock, err = n.lock(r.HostLink)
		return err
	})

	const bound = 50 * time.Millisecond
	for what, f := range map[string]func(context.Context) error{
		"repair":  func(ctx context.Context) error { _, err := n.repair(ctx, r); return err },
		"set mtu": func(ctx context.Context) error { _, err := n.SetMTU(ctx, r, 1400); return err },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), bound)
		began := time.Now()
		err := n.Do(func() error { return f(ctx) })
		cancel()
		if !errors.Is(err, ErrBusy) {
			t.Errorf("%s beside a plugin: %v, want ErrBusy", what, err)
		}
		if took := time.Since(began); took > bound+patience {
			t.Errorf("%s took %s", what, took)
		}
	}

	unlock()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := n.Do(func() error { _, err := n.repair(ended, r); return err }); err != nil {
		t.Errorf("repair of a pod without a holder: %v", err)
	}
}

// patience bounds waits. It is long because the machine may be busy.
const patience = 5 * time.Second

func TestLockIsWaitedForWhileThereIsTime(t *testing.T) {
	p := Paths{PodDir: t.TempDir()}
	unlock, err := p.lock("vpod0123456789a")
	errtest.Must(t, err)

	got := make(chan error)
	go func() {
		unlock, err := p.lockUntil(t.Context(), "vpod0123456789a")
		if err == nil {
			unlock()
		}
		got <- err
	}()

	select {
	case err := <-got:
		t.Fatalf("lock taken beside another: %v", err)
	case <-time.After(3 * busyPoll):
	}

	unlock()
	errtest.Check(t, <-got)

	p.PodDir = os.DevNull + "/none"
	if _, err := p.lockUntil(t.Context(), "vpod0123456789a"); err == nil {
		t.Error("a lock that cannot be opened was taken")
	}
}
