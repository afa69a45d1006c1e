package volume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

const (
	id      = "pvc-1"
	size    = 8 << 20
	cluster = "c0ffee00-0000-4000-8000-000000000001"
)

func TestLife(t *testing.T) {
	n := opened(t)
	ctx := t.Context()
	s := n.process(0)
	if st := n.state(); st.Phase != Ready || st.Epoch != 2 || st.Writer != "node-1" ||
		st.Payload != size || st.Content != Made {
		t.Errorf("opened: %+v", st)
	}
	again, err := s.Open(ctx, id, OpenOptions{})
	if err != nil || !again.Adopted || again.State.Epoch != 2 {
		t.Errorf("opened again: %+v, %v", again, err)
	}

	for i := range 2 {
		c, err := s.Close(ctx, id, nil)
		if err != nil || c.Sealed != (i == 0) {
			t.Errorf("close %d: %+v, %v", i, c, err)
		}
	}

	if st := n.state(); st.Epoch != 3 || st.Writer != "" || len(n.engine.Live()) != 0 {
		t.Errorf("closed: %+v, mappings %v", st, n.engine.Live())
	}
	if o, err := s.Open(ctx, id, OpenOptions{}); err != nil || o.Adopted || o.State.Epoch != 4 ||
		o.State.Content != Made {
		t.Errorf("opened after closing: %+v, %v", o, err)
	}

	n.intact()
	if st, err := s.Expand(ctx, id, 2*size, OpenOptions{}); err != nil || st.Payload != 2*size ||
		st.PendingPayload != 0 || st.Epoch != 4 {
		t.Errorf("expanded: %+v, %v", st, err)
	}
	if o, err := s.Open(ctx, id, OpenOptions{}); err != nil || !o.Adopted ||
		o.Mapping.Targets[0].Length != 2*size {
		t.Errorf("opened after expanding: %+v, %v", o, err)
	}

	n.intact()
	if r, err := s.Delete(ctx, id); err != nil || !r.Shredded {
		t.Errorf("deleted: %+v, %v", r, err)
	}
	if st := n.state(); st.Phase != Deleted || !st.Key.IsZero() || n.disks[id] != nil ||
		len(n.engine.Live()) != 0 {
		t.Errorf("deleted: %+v", st)
	}
	if _, err := s.Open(ctx, id, OpenOptions{}); !errors.Is(err, ErrDeleted) {
		t.Errorf("opened after deleting: %v", err)
	}
	if _, err := s.Create(ctx, id, size, Request{}); !errors.Is(err, ErrDeleted) {
		t.Errorf("made after deleting: %v", err)
	}

	for range 2 {
		if err := s.Forget(ctx, id); err != nil {
			t.Errorf("forget: %v", err)
		}
	}

	if _, err := s.Open(ctx, id, OpenOptions{}); !errors.Is(err, ErrNotFound) {
		t.Errorf("opened after forgetting: %v", err)
	}
}

// operation is an operation on the volume of opened, or on a volume that prepare makes.
type operation struct {
	name    string
	prepare func(t *testing.T, n *node)
	run     func(ctx context.Context, s *Set) error
	done    func(st State) bool
}

func (op operation) node(t *testing.T) *node {
	t.Helper()
	n := newNode(t)
	if op.name != "first open" {
		n = opened(t)
	}
	op.prepare(t, n)
	return n
}

func operations(t *testing.T) []operation {
	t.Helper()
	anew, err := newProvider(t, 2).KeyID(t.Context())
	errtest.Must(t, err)

	return []operation{
		{"first open", func(t *testing.T, n *node) {
			if _, err := n.process(0).Create(t.Context(), id, size, Request{}); err != nil {
				t.Fatal(err)
			}
		}, openAgain, func(st State) bool { return st.Phase == Ready && st.Writer == "node-1" }},
		{"open", func(t *testing.T, n *node) {
			closeVolume(t, n)
		}, openAgain, func(st State) bool { return st.Epoch >= 4 && st.Writer == "node-1" }},
		{"open what another process left", func(*testing.T, *node) {}, openAgain,
			func(st State) bool {
				return st.Epoch >= 2 && st.Writer == "node-1"
			}},
		{"close", func(*testing.T, *node) {}, func(ctx context.Context, s *Set) error {
			_, err := s.Close(ctx, id, nil)
			return err
		}, func(st State) bool { return st.Writer == "" && st.Epoch >= 2 }},
		{"expand", func(*testing.T, *node) {}, func(ctx context.Context, s *Set) error {
			_, err := s.Expand(ctx, id, 2*size, OpenOptions{})
			return err
		}, func(st State) bool { return st.Payload == 2*size && st.PendingPayload == 0 }},
		{"re-wrap", func(t *testing.T, n *node) {
			n.keys = keyring.Chain{newProvider(t, 2), n.keys}
		}, func(ctx context.Context, s *Set) error {
			_, err := s.Rewrap(ctx, id, nil)
			return err
		}, func(st State) bool { return st.Phase == Ready && st.Key.KeyID == anew }},
		{"delete", func(t *testing.T, n *node) { closeVolume(t, n) },
			func(ctx context.Context, s *Set) error {
				_, err := s.Delete(ctx, id)
				return err
			}, func(st State) bool { return st.Phase == Deleted }},
	}
}

// The process of each operation is killed at each step, with and without a reboot, and the next
// process repeats the operation.
func TestKilledAtEachStep(t *testing.T) {
	for _, op := range operations(t) {
		for _, reboot := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, reboot %v", op.name, reboot), func(t *testing.T) {
				var steps int
				for kill := 1; ; kill++ {
					n := op.node(t)
					err := op.run(t.Context(), n.process(kill))
					killed, when := n.steps >= kill, fmt.Sprintf("killed at step %d after %v", kill,
						last(n.trace))
					if err != nil && !errors.Is(err, errDead) || err == nil && killed {
						t.Fatalf("%s: %v", when, err)
					}
					if reboot {
						n.process(0)
						n.reboot()
					}
					checkAgain(t, n, n.process(0), op, when)
					if steps = kill - 1; !killed {
						break
					}
				}
				t.Logf("%d steps", steps)
			})
		}
	}
}

// Each step of each operation fails once. The process continues, undoes the failed operation where
// necessary, and repeats it.
func TestFailedAtEachStep(t *testing.T) {
	for _, op := range operations(t) {
		t.Run(op.name, func(t *testing.T) {
			var steps int
			for fail := 1; ; fail++ {
				n := op.node(t)
				s := n.process(fail)
				n.goesOn = true
				err := op.run(t.Context(), s)
				failed := n.steps >= fail
				when := fmt.Sprintf("step %d failed after %v", fail,
					last(n.trace[:min(len(n.trace), fail-1)]))
				// The operation may succeed if it can do without the failed step, as closing can do
				// without sealing.
				if err != nil && !errors.Is(err, errDead) {
					t.Fatalf("%s: %v", when, err)
				}
				n.kill = 0
				checkAgain(t, n, s, op, when)
				if steps = fail - 1; !failed {
					break
				}
			}
			t.Logf("%d steps", steps)
		})
	}
}

// An expansion that was killed does not lose the mapping, regardless of the next request, because
// the mapping may be mounted.
func TestExpansionThatWasCutShortKeepsTheMapping(t *testing.T) {
	for kill := 1; ; kill++ {
		n := opened(t)
		mapping := n.engine.Live()[0]
		n.engine.Edit(mapping, func(m *dmcrypt.Mapping) { m.Open = 1 })
		_, err := n.process(kill).Expand(t.Context(), id, 2*size, OpenOptions{})
		killed := n.steps >= kill

		when := fmt.Sprintf("killed at step %d after %v", kill, last(n.trace))
		for range 2 {
			if o, err := n.process(0).Open(t.Context(), id, OpenOptions{}); err != nil ||
				!o.Adopted || o.Mapping.Name != mapping {
				t.Fatalf("%s: %+v, %v", when, o, err)
			}
		}

		if st, err := n.process(0).Expand(t.Context(), id, 2*size, OpenOptions{}); err != nil ||
			st.Payload != 2*size {
			t.Fatalf("%s: expanded: %+v, %v", when, st, err)
		}

		if o, err := n.process(0).Open(t.Context(), id, OpenOptions{}); err != nil ||
			o.Mapping.Name != mapping || o.Mapping.Targets[0].Length != 2*size {
			t.Fatalf("%s: then: %+v, %v", when, o, err)
		}

		if !killed {
			errtest.Must(t, err)
			return
		}
	}
}

func last(trace []string) []string { return trace[max(0, len(trace)-3):] }

func openAgain(ctx context.Context, s *Set) error {
	_, err := s.Open(ctx, id, OpenOptions{})
	return err
}

func closeVolume(t *testing.T, n *node) {
	t.Helper()
	if c, err := n.process(0).Close(t.Context(), id, nil); err != nil || !c.Sealed {
		t.Fatal(c, err)
	}
}

// checkAgain repeats the operation with an undisturbed process, and then runs every operation that
// must be possible.
func checkAgain(t *testing.T, n *node, s *Set, op operation, when string) {
	t.Helper()
	if err := op.run(t.Context(), s); err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	st := n.state()
	if !op.done(st) {
		t.Fatalf("%s: state %+v", when, st)
	}

	if st.Phase == Deleted {
		if n.disks[id] != nil || !st.Key.IsZero() {
			t.Fatalf("%s: the volume was not removed completely", when)
		}
		return
	}

	o, err := s.Open(t.Context(), id, OpenOptions{})
	if err != nil {
		t.Fatalf("%s: then open: %v", when, err)
	}
	if live := n.engine.Live(); !slices.Equal(live, []string{o.Mapping.Name}) {
		t.Fatalf("%s: mappings %v, want only %s", when, live, o.Mapping.Name)
	}
	if st.Content == Made {
		n.intact()
	}
	if c, err := s.Close(t.Context(), id, nil); err != nil || !c.Sealed {
		t.Fatalf("%s: then close: %+v, %v", when, c, err)
	}

	if _, err := s.Open(t.Context(), id, OpenOptions{}); err != nil {
		t.Fatalf("%s: then open: %v", when, err)
	}
}

func equal(a, b State) bool { return fmt.Sprintf("%+v", a) == fmt.Sprintf("%+v", b) }
