package volume

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/csi/backend"
	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// heir returns another node with the same states and disks.
func (n *node) heir() *node {
	n.t.Helper()
	other := newNode(n.t)
	other.name, other.store, other.disks, other.numbers = "node-2", n.store, n.disks, n.numbers
	return other
}

// edit changes the state of the volume as another node would.
func (n *node) edit(change func(*State)) {
	store := n.store.(*memoryStore)
	store.mu.Lock()
	defer store.mu.Unlock()
	s := store.states[id]
	change(&s.State)
	s.Revision++
	store.states[id] = s
}

// A volume was taken from a node that has it open. Once the node looks at the state, it stops
// writing to the volume, changes nothing else, and can close the volume.
func TestYieldFencesTakenOverMappings(t *testing.T) {
	for name, take := range map[string]func(n *node){
		"taken": func(n *node) {
			if _, err := n.heir().process(0).Open(n.t.Context(), id,
				OpenOptions{TakeOver: "node-1"}); err != nil {
				n.t.Fatal(err)
			}
		},
		"about to be": func(n *node) {
			n.edit(func(s *State) { s.Writer, s.PendingEpoch = "node-2", s.Epoch+1 })
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := opened(t)
			n.t = t
			n.edit(func(s *State) { s.Request.Node = "node-1" })
			mapping := n.engine.Live()[0]
			n.engine.Edit(mapping, func(m *dmcrypt.Mapping) { m.Open = 1 })
			if err := n.process(0).FenceByState(t.Context(), id); err != nil ||
				len(n.engine.Live()) != 1 {
				t.Fatalf("its own volume: %v, mappings %v", err, n.engine.Live())
			}

			take(n)
			before, writes := n.state(), n.disks[id].Writes()
			s := n.process(0)
			for range 2 {
				if err := s.FenceByState(t.Context(), id); err != nil || len(n.engine.Live()) != 0 {
					t.Errorf("%v, mappings %v", err, n.engine.Live())
				}
			}

			_, err := s.Open(t.Context(), id, OpenOptions{})
			if !errors.As(err, new(*BusyError)) ||
				!strings.Contains(err.Error(),
					"taken over from this node, node-1, by node node-2") ||
				!strings.Contains(err.Error(), "PersistentVolume") {
				t.Errorf("opened again: %v", err)
			}

			n.engine.Edit(mapping, func(m *dmcrypt.Mapping) { m.Open = 0 })
			if _, err := s.Close(t.Context(), id, nil); err != nil {
				t.Errorf("closed: %v", err)
			}
			if _, err := n.engine.Lookup(t.Context(), mapping); !errors.Is(err,
				dmcrypt.ErrNoMapping) || !equal(n.state(), before) ||
				n.disks[id].Writes() != writes {
				t.Errorf("%v, state %+v, %d writes", err, n.state(), n.disks[id].Writes()-writes)
			}

			n.intact()
		})
	}
}

// Mappings of volumes that other nodes do not have are kept, and so are mappings with a later epoch
// than the state.
func TestYieldKeepsMappingsOfThisNode(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*State)
		want error
	}{
		"without a writer": {func(s *State) { s.Writer = "" }, nil},
		"a state from a backup": {func(s *State) { s.Writer, s.Epoch = "node-2", 1 },
			crypt.NewerThanState},
	} {
		n := opened(t)
		n.edit(c.edit)
		if err := n.process(0).FenceByState(t.Context(), id); !errors.Is(err, c.want) ||
			len(n.engine.Live()) != 1 {
			t.Errorf("%s: %v, mappings %v", name, err, n.engine.Live())
		}
	}
}

// The other node has closed the volume again before this node looks. The volume is not in use by
// any node, but the mapping of this node could still write to it.
func TestYieldOfFormerEpochs(t *testing.T) {
	n := opened(t)
	other := n.heir().process(0)
	if _, err := other.Open(t.Context(), id, OpenOptions{TakeOver: "node-1"}); err != nil {
		t.Fatal(err)
	}
	errtest.Must(t, errtest.Of(other.Close(t.Context(), id, nil)))
	before, writes := n.state(), n.disks[id].Writes()
	s := n.process(0)
	for range 2 {
		if err := s.FenceByState(t.Context(), id); err != nil || len(n.engine.Live()) != 0 {
			t.Errorf("%v, mappings %v", err, n.engine.Live())
		}
	}
	if before.Writer != "" || !equal(n.state(), before) || n.disks[id].Writes() != writes {
		t.Errorf("state %+v, %d writes", n.state(), n.disks[id].Writes()-writes)
	}
	if _, err := other.Open(t.Context(), id, OpenOptions{}); err != nil {
		t.Error(err)
	}
	n.intact()
}

// The kept key that seals a volume is removed with the volume, and not before.
func TestYieldAndTheKeyThatIsKept(t *testing.T) {
	n := opened(t)
	s := n.process(0)
	if _, err := s.Open(t.Context(), id, OpenOptions{KeepSealing: true}); err != nil {
		t.Fatal(err)
	}
	if err := s.FenceByState(t.Context(), id); err != nil || s.sealing[id] == nil {
		t.Errorf("key of a volume that the node has: %v, kept %v", err, s.sealing[id] != nil)
	}
	n.edit(func(s *State) { s.Writer = "node-2" })
	if err := s.FenceByState(t.Context(), id); err != nil || s.sealing[id] != nil {
		t.Errorf("key of a volume that was taken over: %v, kept %v", err, s.sealing[id] != nil)
	}
}

// takes is a backend. While it works, another node takes the volume over.
type takes struct {
	backend.Backend
	take func()
}

func (b takes) Attach(ctx context.Context, v string) (backend.Device, error) {
	b.take()
	return b.Backend.Attach(ctx, v)
}

// takenWhenRead makes another node take the volume over at the moment when its disk is read.
func takenWhenRead(s *Set, take func()) {
	disk := s.Backend.(stepBackend).disks[id]
	hook := disk.Hook
	disk.Hook = func(op string, off int64, n int) error {
		if op == "read" && take != nil {
			take()
			take = nil
		}
		return hook(op, off, n)
	}
}

// A node that continues an interrupted operation reads the state again before it writes, because
// another node may have taken over the volume and its disk.
func TestContinuedOperationSeesATakeover(t *testing.T) {
	for name, c := range map[string]struct {
		cut func(*State)
		do  func(ctx context.Context, s *Set, take func()) error
	}{
		"close": {func(s *State) { s.PendingEpoch = s.Epoch + 1 },
			func(ctx context.Context, s *Set, take func()) error {
				takenWhenRead(s, take)
				_, err := s.Close(ctx, id, nil)
				return err
			}},
		"copy": {func(s *State) { s.PendingEpoch = s.Epoch + 1 },
			func(ctx context.Context, s *Set, take func()) error {
				takenWhenRead(s, take)
				_, err := s.Copy(ctx, copyID, id, CopyOptions{})
				return err
			}},
		"expand": {func(s *State) { s.PendingPayload = 2 * size },
			func(ctx context.Context, s *Set, take func()) error {
				s.Backend = takes{s.Backend, take}
				_, err := s.Expand(ctx, id, 2*size, OpenOptions{})
				return err
			}},
		"make": {func(s *State) { s.Content, s.Mode = Unmade, "" },
			func(ctx context.Context, s *Set, take func()) error {
				s.Backend = takes{s.Backend, take}
				_, err := s.Make(ctx, id, OpenOptions{}, func(string) error {
					t.Error("a file system was made on a volume of another node")
					return nil
				})
				return err
			}},
	} {
		t.Run(name, func(t *testing.T) {
			n := opened(t)
			n.edit(c.cut)
			writes := n.disks[id].Writes()
			err := c.do(t.Context(), n.process(0), func() {
				n.edit(func(s *State) { s.Writer = "node-2" })
			})
			if !errors.Is(err, ErrConflict) || n.disks[id].Writes() != writes ||
				n.state().Writer != "node-2" {
				t.Errorf("%v, %d writes, writer %s", err, n.disks[id].Writes()-writes,
					n.state().Writer)
			}
		})
	}
}
