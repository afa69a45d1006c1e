package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt/dmcrypttest"
	"github.com/kubeveil/kubeveil/csi/internal/blk"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// Mappings that a dead copy left suspended are resumed when the driver starts, and when their
// volume is opened. Mappings of a running copy are not resumed.
func TestResumeResumesWhatADeadCopySuspended(t *testing.T) {
	n := opened(t)
	name := n.engine.Live()[0]
	stop := func() { n.engine.Edit(name, func(m *dmcrypt.Mapping) { m.Suspended = true }) }
	stop()
	s := n.process(0)
	unlock, err := s.lock(id)
	errtest.Must(t, err)
	// The copying process may still die, so the caller must call Resume again.
	if err := s.Resume(t.Context()); !errors.Is(err, ErrInProgress) || len(n.suspended()) != 1 {
		t.Errorf("while it is copied: %v, suspended %v", err, n.suspended())
	}
	unlock()
	if err := s.Resume(t.Context()); err != nil || len(n.suspended()) != 0 {
		t.Errorf("at the start: %v, suspended %v", err, n.suspended())
	}
	stop()
	if o, err := s.Open(t.Context(), id, OpenOptions{}); err != nil || !o.Adopted ||
		len(n.suspended()) != 0 {
		t.Errorf("when it is opened: %+v, %v", o, err)
	}
}

// lame is a store that has, among others, a state that cannot be read. If it is away, no states can
// be read.
type lame struct {
	Store
	away bool
}

func (l lame) List(ctx context.Context) ([]State, error) {
	if l.away {
		return nil, ErrUnavailable
	}
	states, err := l.Store.List(ctx)
	return states, errors.Join(err, fmt.Errorf("volume pvc-9: %w: no status", ErrState))
}

// A refused state of one volume does not keep other volumes suspended.
func TestResumeBesideAStateThatIsRefused(t *testing.T) {
	n := opened(t)
	stop := func(name string) {
		n.engine.Edit(name, func(m *dmcrypt.Mapping) { m.Suspended = true })
	}
	stop(n.engine.Live()[0])
	s := n.process(0)
	s.Store = lame{s.Store, true}
	if err := s.Resume(t.Context()); !errors.Is(err, ErrUnavailable) || len(n.suspended()) != 1 {
		t.Errorf("no states: %v, suspended %v", err, n.suspended())
	}
	s.Store = lame{n.store, false}
	if err := s.Resume(t.Context()); err != nil || len(n.suspended()) != 0 {
		t.Errorf("a state that is refused: %v, suspended %v", err, n.suspended())
	}
	// This mapping may belong to the volume whose state is refused.
	second(t, n)
	for _, name := range n.engine.Live() {
		stop(name)
	}
	delete(n.store.(*memoryStore).states, "pvc-2")
	if err := s.Resume(t.Context()); !errors.Is(err, ErrState) || len(n.suspended()) != 1 {
		t.Errorf("a mapping that may be of the refused state: %v, suspended %v", err,
			n.suspended())
	}
}

// A mapping is not resumed if another node took its volume over, or is about to, because the
// mapping would write.
func TestResumeLeavesWhatAnotherNodeHas(t *testing.T) {
	n := opened(t)
	n.engine.Edit(n.engine.Live()[0], func(m *dmcrypt.Mapping) { m.Suspended = true })
	n.edit(func(s *State) { s.Writer, s.PendingEpoch = "node-2", s.Epoch+1 })
	s := n.process(0)
	if err := s.Resume(t.Context()); err != nil || len(n.suspended()) != 1 {
		t.Errorf("%v, suspended %v", err, n.suspended())
	}
	if err := s.FenceByState(t.Context(), id); err != nil || len(n.engine.Live()) != 0 {
		t.Errorf("fenced: %v, mappings %v", err, n.engine.Live())
	}
}

// watched is a backend whose Copy calls look, while the source is suspended, and fails.
type watched struct {
	stepBackend
	look func()
}

func (b watched) Copy(context.Context, string, string, int64) error {
	b.look()
	return errDead
}

// killedInACopy returns a node whose process was killed while a source was suspended, and the next
// process.
func killedInACopy(t *testing.T) (*node, *Set) {
	t.Helper()
	n, locks, left := opened(t), t.TempDir(), t.TempDir()
	s := n.process(0)
	s.Locks, s.Backend = locks, watched{stepBackend{n}, func() {
		errtest.Check(t, os.CopyFS(left, os.DirFS(locks)))
	}}
	if _, err := s.Copy(t.Context(), copyID, id, CopyOptions{}); !errors.Is(err, errDead) {
		t.Fatal(err)
	}
	n.engine.Edit(n.engine.Live()[0], func(m *dmcrypt.Mapping) { m.Suspended = true })
	next := n.process(0)
	next.Locks, next.Store = left, lame{next.Store, true}
	next.OpenBelow = func(uint64) (blk.Reader, error) { return n.disks[id], nil }
	return n, next
}

// A mapping that a killed copy left suspended is resumed at the next start, even while the API
// server is away.
func TestResumeWithoutAPIServer(t *testing.T) {
	n, s := killedInACopy(t)
	for range 2 {
		if err := s.Resume(t.Context()); err != nil || len(n.suspended()) != 0 ||
			len(n.engine.Live()) != 1 {
			t.Errorf("%v, suspended %v, mappings %v", err, n.suspended(), n.engine.Live())
		}
	}
	if marks, err := os.ReadDir(s.Locks); err != nil ||
		slices.ContainsFunc(marks, func(e os.DirEntry) bool {
			return strings.HasSuffix(e.Name(), suspendedSuffix)
		}) {
		t.Errorf("marks %v, %v", marks, err)
	}
}

// A mapping is not resumed if another node has opened its disk since, because the mapping would
// write.
func TestResumeWithoutAPIServerFencesWhatWasTaken(t *testing.T) {
	n, s := killedInACopy(t)
	heir := n.process(0)
	other := dmcrypttest.New()
	heir.Node, heir.Engine = "node-2", other
	if _, err := heir.Open(t.Context(), id, OpenOptions{TakeOver: "node-1"}); err != nil {
		t.Fatal(err)
	}
	if err := s.Resume(t.Context()); err != nil || len(n.engine.Live()) != 0 ||
		len(other.Live()) != 1 {
		t.Errorf("%v, mappings %v, of the other %v", err, n.engine.Live(), other.Live())
	}
}
