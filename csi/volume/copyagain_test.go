package volume

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

// An incomplete copy becomes as large as its source is when the copy is requested again.
func TestCopyOfASourceThatHasGrown(t *testing.T) {
	n := opened(t)
	s := n.process(0)
	if err := n.store.Create(t.Context(), s.newState(copyID, size, Request{Source: id})); err !=
		nil {
		t.Fatal(err)
	}
	if _, err := s.Expand(t.Context(), id, 2*size, OpenOptions{}); err != nil {
		t.Fatal(err)
	}
	if st := copyVolume(t, s, copyID, id, CopyOptions{Size: 2 * size}); st.Payload != 2*size ||
		st.Phase != Ready {
		t.Errorf("%+v", st)
	}
}

// halfMade is a store with a state of copyID that cannot be read. Either its creation was
// interrupted, and a second creation completes it, or it can never be read.
type halfMade struct {
	*memoryStore
	whole, spoilt bool
}

func (h *halfMade) Get(ctx context.Context, v string) (State, Revision, error) {
	if v == copyID && !h.whole {
		return State{}, "", fmt.Errorf("volume %s: %w: no status", v, ErrState)
	}
	return h.memoryStore.Get(ctx, v)
}

func (h *halfMade) Create(ctx context.Context, st State) error {
	if st.Volume == copyID && h.spoilt {
		return ErrExists
	}
	h.whole = true
	return h.memoryStore.Create(ctx, st)
}

// A copy whose state was made only partly is made at the next request. A copy whose state cannot be
// read is left unchanged.
func TestCopyWhoseStateWasCutShort(t *testing.T) {
	for _, spoilt := range []bool{false, true} {
		n := opened(t)
		s := n.process(0)
		s.Store = &halfMade{memoryStore: n.store.(*memoryStore), spoilt: spoilt}
		st, err := s.Copy(t.Context(), copyID, id, CopyOptions{Snapshot: true})
		if spoilt && (!errors.Is(err, ErrState) || n.disks[copyID] != nil) {
			t.Errorf("a state that can never be read: %v, disk %v", err, n.disks[copyID] != nil)
		}
		if !spoilt && (err != nil || st.Phase != Ready) {
			t.Errorf("a state whose creation was interrupted: %+v, %v", st, err)
		}
		n.intact()
	}
}
