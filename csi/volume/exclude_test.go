package volume

import (
	"errors"
	"sync"
	"testing"

	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

func TestCloseWhileBusy(t *testing.T) {
	n := opened(t)
	m := n.engine.Live()[0]
	n.engine.Edit(m, func(m *dmcrypt.Mapping) { m.Open = 1 })
	before := n.state()
	if _, err := n.process(0).Close(t.Context(), id, nil); !errors.Is(err, ErrInUse) {
		t.Errorf("closed: %v", err)
	}
	if _, err := n.process(0).Delete(t.Context(), id); !errors.Is(err, ErrInUse) {
		t.Errorf("deleted: %v", err)
	}
	if !equal(n.state(), before) || len(n.engine.Live()) != 1 {
		t.Error("something changed")
	}
	if o, err := n.process(0).Open(t.Context(), id, OpenOptions{}); err != nil || !o.Adopted {
		t.Errorf("opened again: %+v, %v", o, err)
	}
}

func TestOneNodeAtATime(t *testing.T) {
	n := opened(t)
	var busy *BusyError
	other := newNode(t)
	other.store, other.disks, other.numbers, other.name = n.store, n.disks, n.numbers, "node-2"

	s := other.process(0)
	for name, err := range map[string]error{
		"open":   openAgain(t.Context(), s),
		"delete": func() error { _, err := s.Delete(t.Context(), id); return err }(),
		"expand": func() error {
			_, err := s.Expand(t.Context(), id, 2*size, OpenOptions{})
			return err
		}(),
		"wrong name": func() error {
			_, err := s.Open(t.Context(), id, OpenOptions{TakeOver: "node-3"})
			return err
		}(),
	} {
		if !errors.As(err, &busy) || busy.Holder != "node-1" {
			t.Errorf("%s: %v", name, err)
		}
	}

	if _, err := s.Close(t.Context(), id, nil); err != nil || n.state().Writer != "node-1" {
		t.Errorf("closing a volume that another node has: %v, writer %s", err, n.state().Writer)
	}
	if o, err := s.Open(t.Context(), id, OpenOptions{TakeOver: "node-1"}); err != nil ||
		o.State.Writer != "node-2" {
		t.Errorf("taken over: %+v, %v", o, err)
	}
	if _, err := n.process(0).Open(t.Context(), id, OpenOptions{}); !errors.As(err, &busy) {
		t.Errorf("the former node: %v", err)
	}
}

// Many processes and goroutines call an operation at once. One of them runs, and the others get an
// error.
func TestOneOfManyConcurrentOperationsWorks(t *testing.T) {
	n := opened(t)
	locks := t.TempDir()
	var wg sync.WaitGroup
	for range 2 {
		s := n.process(0)
		s.Locks = locks
		for range 8 {
			wg.Go(func() {
				if o, err := s.Open(t.Context(), id, OpenOptions{}); err != nil &&
					!errors.Is(err, ErrInProgress) || err == nil && !o.Adopted {
					t.Errorf("%+v, %v", o, err)
				}
			})
		}
	}
	wg.Wait()
	if live := n.engine.Live(); len(live) != 1 || n.state().Epoch != 2 {
		t.Errorf("mappings %v, epoch %d", live, n.state().Epoch)
	}
}

func TestLocksExcludeProcesses(t *testing.T) {
	n := opened(t)
	locks := t.TempDir()
	a, b := n.process(0), n.process(0)
	a.Locks, b.Locks = locks, locks
	unlock, err := a.lock(id)
	errtest.Must(t, err)
	if _, err := b.Open(t.Context(), id, OpenOptions{}); !errors.Is(err, ErrInProgress) {
		t.Errorf("another process: %v", err)
	}
	unlock()
	if _, err := b.Open(t.Context(), id, OpenOptions{}); err != nil {
		t.Error(err)
	}
}
