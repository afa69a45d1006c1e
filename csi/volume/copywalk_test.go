package volume

import (
	"errors"
	"fmt"
	"testing"
)

// For each state of the source, the process of a copy is killed at each of its steps, with and
// without a reboot, and the next process makes the copy again.
func TestCopyKilledAtEachStep(t *testing.T) {
	cut := func(wanted func(State) bool) func(t *testing.T) *node {
		kill := 0
		return func(t *testing.T) *node {
			if kill == 0 {
				kill = lastStep(t, wanted)
			}
			n, _ := expandAndClose(t, kill)
			return n
		}
	}

	closed := func(t *testing.T) *node { n := opened(t); closeVolume(t, n); return n }
	created := func(t *testing.T) *node {
		n := newNode(t)
		if _, err := n.process(0).Create(t.Context(), id, size, Request{}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for name, c := range map[string]struct {
		source func(t *testing.T) *node
		reboot bool
		larger int64
	}{
		"open": {func(t *testing.T) *node { return opened(t) }, false,
			4 * size},
		"open, then a reboot": {func(t *testing.T) *node { return opened(t) }, true, 0},
		"closed":              {closed, true, 4 * size},
		"new":                 {created, false, 0},
		"cut while it was sealed": {cut(func(st State) bool { return st.PendingEpoch != 0 }),
			true, 0},
		"cut while it was expanded": {cut(func(st State) bool { return st.PendingPayload != 0 }),
			false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var steps int
			for kill := 1; ; kill++ {
				n := c.source(t)
				_, err := n.process(kill).Copy(t.Context(), copyID, id, CopyOptions{Size: c.larger})
				killed := n.steps >= kill
				if err != nil && !errors.Is(err, errDead) || err == nil && killed {
					t.Fatalf("step %d: %v", kill, err)
				}
				when := fmt.Sprintf("killed at step %d after %v", kill, last(n.trace))
				if c.reboot {
					n.process(0)
					n.reboot()
				}
				copyAgain(t, n, n.process(0), c.larger, when)
				if steps = kill - 1; !killed {
					break
				}
			}

			t.Logf("%d steps", steps)
		})
	}
}

// Each step of a copy fails once. The process continues, removes the parts of the copy, and makes
// it again.
func TestCopyFailedAtEachStep(t *testing.T) {
	for name, source := range map[string]func(t *testing.T) *node{
		"open":   func(t *testing.T) *node { return opened(t) },
		"closed": func(t *testing.T) *node { n := opened(t); closeVolume(t, n); return n },
		"new":    func(t *testing.T) *node { return created(t) },
	} {
		t.Run(name, func(t *testing.T) {
			for fail := 1; ; fail++ {
				n := source(t)
				s := n.process(fail)
				n.goesOn = true
				_, err := s.Copy(t.Context(), copyID, id, CopyOptions{Size: 4 * size})
				when := fmt.Sprintf("step %d failed after %v", fail,
					last(n.trace[:min(len(n.trace), fail-1)]))
				if err != nil && !errors.Is(err, errDead) {
					t.Fatalf("%s: %v", when, err)
				}

				failed := n.steps >= fail
				n.kill = 0
				copyAgain(t, n, s, 4*size, when)
				if !failed {
					t.Logf("%d steps", fail-1)
					return
				}
			}
		})
	}
}

// expandAndClose returns a node with a volume that a process expands and closes. The process is
// killed at step kill.
func expandAndClose(t *testing.T, kill int) (*node, error) {
	n := opened(t)
	s := n.process(kill)
	_, err := s.Expand(t.Context(), id, 2*size, OpenOptions{})
	if err == nil {
		_, err = s.Close(t.Context(), id, nil)
	}
	return n, err
}

// lastStep returns the last step of expandAndClose after which the state is as wanted.
func lastStep(t *testing.T, wanted func(State) bool) int {
	t.Helper()
	found := 0
	for kill := 1; ; kill++ {
		n, err := expandAndClose(t, kill)
		if wanted(n.state()) {
			found = kill
		}
		if err == nil {
			if found == 0 {
				t.Fatal("the state was never as wanted")
			}
			return found
		}
	}
}

// copyAgain makes the copy with an undisturbed process, and then runs every operation that must be
// possible.
func copyAgain(t *testing.T, n *node, s *Set, larger int64, when string) {
	t.Helper()
	if err := s.Resume(t.Context()); err != nil || len(n.suspended()) != 0 {
		t.Fatalf("%s: resume: %v, suspended %v", when, err, n.suspended())
	}

	want, pending := max(larger, n.state().Payload), max(larger, n.state().PendingPayload)
	st, err := s.Copy(t.Context(), copyID, id, CopyOptions{Size: larger})
	if err != nil || st.Phase != Ready || st.Payload != want && st.Payload != pending ||
		st.Writer != "" {
		t.Fatalf("%s: %+v, %v", when, st, err)
	}

	source := n.state()
	if st.Content != source.Content || n.marked(copyID) != (source.Content == Made) {
		t.Fatalf("%s: the content differs from the source: %+v, marked %v", when, st,
			n.marked(copyID))
	}

	for _, v := range []string{id, copyID} {
		o, err := s.Open(t.Context(), v, OpenOptions{})
		if now := n.stateOf(v); err != nil ||
			o.Mapping.Targets[0].Length != max(now.Payload, now.PendingPayload) &&
				o.Mapping.Targets[0].Length != now.Payload {
			t.Fatalf("%s: open %s: %+v, %v", when, v, o, err)
		}
		if c, err := s.Close(t.Context(), v, nil); err != nil || !c.Sealed {
			t.Fatalf("%s: close %s: %+v, %v", when, v, c, err)
		}
		if r, err := s.Delete(t.Context(), v); err != nil || !r.Shredded {
			t.Fatalf("%s: delete %s: %+v, %v", when, v, r, err)
		}
	}
}
