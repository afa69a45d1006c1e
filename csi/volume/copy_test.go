package volume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/internal/blk/blktest"
	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

const (
	copyID = "snap-1"
	// markAt is the offset at which opened writes a mark.
	markAt = crypt.DataOffset + 12345
)

func (n *node) stateOf(volume string) State {
	n.t.Helper()
	s, _, err := n.store.Get(n.t.Context(), volume)
	errtest.Must(n.t, err)
	return s
}

// marked reports whether the disk of the volume has the mark that opened wrote.
func (n *node) marked(volume string) bool {
	d := n.disks[volume]
	hook := d.Hook
	d.Hook = nil
	defer func() { d.Hook = hook }()
	b := make([]byte, 4096)
	_, err := d.ReadAt(b, markAt&^4095)
	return err == nil && b[markAt&4095] == 0x77
}

func (n *node) suspended() []string {
	var out []string
	for _, name := range n.engine.Live() {
		if m, err := n.engine.Lookup(n.t.Context(), name); err == nil && m.Suspended {
			out = append(out, name)
		}
	}
	return out
}

func copyVolume(t *testing.T, s *Set, dst, src string, opts CopyOptions) State {
	t.Helper()
	st, err := s.Copy(t.Context(), dst, src, opts)
	errtest.Must(t, err)
	return st
}

func TestCopiesOfCopies(t *testing.T) {
	n := opened(t)
	ctx := t.Context()
	s := n.process(0)
	for range 2 {
		st := copyVolume(t, s, copyID, id, CopyOptions{Snapshot: true})
		if st.Phase != Ready || st.Epoch != 1 || st.Writer != "" || st.Content != Made ||
			st.Payload != size || !st.Request.Snapshot || st.Request.Source != id {
			t.Errorf("snapshot: %+v", st)
		}
	}

	for name, err := range map[string]error{
		"open": func() error { _, err := s.Open(ctx, copyID, OpenOptions{}); return err }(),
		"mark": s.MarkMade(ctx, copyID, "", Block),
		"expand": func() error {
			_, err := s.Expand(ctx, copyID, 2*size, OpenOptions{})
			return err
		}(),
	} {
		if !errors.Is(err, ErrSnapshot) {
			t.Errorf("%s a snapshot: %v", name, err)
		}
	}

	// Later writes are not in the snapshot. The snapshot outlives the volume.
	n.disks[id].Flip(markAt, 0x77)
	closeVolume(t, n)
	s = n.process(0)
	errtest.Must(t, errtest.Of(s.Delete(ctx, id)))
	restored := copyVolume(t, s, "pvc-2", copyID, CopyOptions{Size: 2*size - 1})
	if restored.Payload != 2*size || restored.Content != Made {
		t.Errorf("restored: %+v", restored)
	}

	copyVolume(t, s, "pvc-3", "pvc-2", CopyOptions{Keys: newProvider(t, 9)})
	for _, gone := range []string{copyID, "pvc-2"} {
		if r, err := s.Delete(ctx, gone); err != nil || !r.Shredded {
			t.Errorf("delete %s: %+v, %v", gone, r, err)
		}
	}

	if _, err := s.Open(ctx, "pvc-3", OpenOptions{}); !errors.Is(err, keyring.ErrWrongKey) {
		t.Errorf("with the key of the source: %v", err)
	}
	o, err := s.Open(ctx, "pvc-3", OpenOptions{Keys: newProvider(t, 9)})
	if err != nil || o.Mapping.Targets[0].Length != 2*size || o.State.Epoch != 2 ||
		!n.marked("pvc-3") {
		t.Errorf("the last: %+v, %v, marked %v", o, err, n.marked("pvc-3"))
	}
}

// A source is suspended only while it is copied.
func TestSourceStandsStill(t *testing.T) {
	n := opened(t)
	var trace []string
	refuse := false
	hook := n.engine.Hook
	n.engine.Hook = func(op, name string) error {
		if op == "suspend" || op == "resume" {
			trace = append(trace, op)
		}
		if op == "suspend" && refuse {
			return errDead
		}
		return hook(op, name)
	}
	s := n.process(0)

	copyVolume(t, s, copyID, id, CopyOptions{})
	if !slices.Equal(trace, []string{"suspend", "resume"}) || len(n.suspended()) != 0 {
		t.Errorf("an open volume: %v, suspended %v", trace, n.suspended())
	}

	closeVolume(t, n)
	trace = nil
	copyVolume(t, n.process(0), "b", id, CopyOptions{})
	if len(trace) != 0 {
		t.Errorf("a closed volume: %v", trace)
	}

	// A source that cannot be suspended is not copied.
	s = n.process(0)
	if _, err := s.Open(t.Context(), id, OpenOptions{}); err != nil {
		t.Fatal(err)
	}
	refuse = true
	if _, err := s.Copy(t.Context(), "c", id, CopyOptions{}); !errors.Is(err, errDead) {
		t.Errorf("cannot be suspended: %v", err)
	}

	n.nothingOf("c")
}

// nothingOf checks that neither the state nor the backing of the volume remains.
func (n *node) nothingOf(volume string) {
	n.t.Helper()
	if _, _, err := n.store.Get(n.t.Context(), volume); !errors.Is(err, ErrNotFound) ||
		n.disks[volume] != nil {
		n.t.Errorf("%s was not removed completely: %v, disk %v", volume, err,
			n.disks[volume] != nil)
	}
}

// stuck is a backend whose copies do not end while their source is suspended, for example because
// they wait for memory that the source's data holds.
type stuck struct{ stepBackend }

func (b stuck) Copy(ctx context.Context, dst, src string, size int64) error {
	nettest.Until(b.t, time.Minute, "the source goes on",
		func() bool { return len(b.suspended()) == 0 })
	return b.stepBackend.Copy(context.WithoutCancel(ctx), dst, src, size)
}

func TestCopyThatTakesTooLong(t *testing.T) {
	n := opened(t)
	s := n.process(0)
	s.Backend = stuck{stepBackend{n}}
	s.limit = time.Millisecond
	if _, err := s.Copy(t.Context(), copyID, id, CopyOptions{}); !errors.Is(err,
		ErrTooLong) {
		t.Errorf("%v", err)
	}
	n.nothingOf(copyID)
	ctx, cancel := context.WithCancel(t.Context())
	s.limit = suspendLimit
	time.AfterFunc(time.Millisecond, cancel)
	if _, err := s.Copy(ctx, copyID, id, CopyOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	n.nothingOf(copyID)
	n.intact()
}

func TestCopyRefuses(t *testing.T) {
	n := opened(t)
	s := n.process(0)
	copyVolume(t, s, copyID, id, CopyOptions{Snapshot: true})

	for name, c := range map[string]struct {
		dst, src string
		opts     CopyOptions
		want     error
	}{
		"of nothing":             {"a", "none", CopyOptions{}, ErrNotFound},
		"smaller":                {"a", id, CopyOptions{Size: size - 4096}, ErrSmaller},
		"onto itself":            {id, id, CopyOptions{}, ErrExists},
		"onto a volume":          {id, copyID, CopyOptions{}, ErrExists},
		"the same name, not one": {copyID, id, CopyOptions{}, ErrExists},
		"the same name, larger": {copyID, id, CopyOptions{Snapshot: true, Size: 2 * size},
			ErrExists},
		"the same name, of it": {copyID, copyID, CopyOptions{Snapshot: true}, ErrExists},
		"a new one of itself":  {"a", "a", CopyOptions{}, ErrNotFound},
		"without the source's key": {"a", id, CopyOptions{Keys: awayProvider{newProvider(t, 3)}},
			keyring.ErrUnavailable},
	} {
		if _, err := s.Copy(t.Context(), c.dst, c.src, c.opts); !errors.Is(err, c.want) {
			t.Errorf("%s: %v; want %v", name, err, c.want)
		}
	}

	if _, err := s.Create(t.Context(), copyID, size, Request{}); !errors.Is(err, ErrExists) {
		t.Errorf("a volume with the name of a snapshot was made: %v", err)
	}

	n.nothingOf("a")
	n.intact()
}

// A source that was never opened is formatted, and is not in use afterwards, so any node may open
// it.
func TestCopyOfANewVolume(t *testing.T) {
	n := newNode(t)
	s := n.process(0)
	if _, err := s.Create(t.Context(), id, size, Request{}); err != nil {
		t.Fatal(err)
	}
	if st := copyVolume(t, s, copyID, id, CopyOptions{}); st.Content != Unmade {
		t.Errorf("copy: %+v", st)
	}
	if st := n.state(); st.Phase != Ready || st.Writer != "" || st.Content != Unmade {
		t.Errorf("source: %+v", st)
	}
	for _, v := range []string{id, copyID} {
		if o, err := s.Open(t.Context(), v, OpenOptions{}); err != nil || o.State.Epoch != 2 {
			t.Errorf("%s: %+v, %v", v, o, err)
		}
	}
}

// A copy does not open on its source's disk, and the source does not open on the copy's disk. Their
// keys are the same, so only their names and records differ.
func TestCopyAndSourceAreNotExchanged(t *testing.T) {
	n := opened(t)
	closeVolume(t, n)
	s := n.process(0)
	copyVolume(t, s, copyID, id, CopyOptions{})
	source, copied := n.disks[id].Clone(), n.disks[copyID].Clone()
	n.disks[id].Become(copied)
	n.disks[copyID].Become(source)
	for _, v := range []string{id, copyID} {
		writes := n.disks[v].Writes()
		if _, err := s.Open(t.Context(), v, OpenOptions{}); !errors.Is(err, crypt.OtherVolume) ||
			n.disks[v].Writes() != writes {
			t.Errorf("%s on the other's disk: %v", v, err)
		}
	}
	n.disks[id].Become(source)
	n.disks[copyID].Become(copied)
	for _, v := range []string{id, copyID} {
		if _, err := s.Open(t.Context(), v, OpenOptions{}); err != nil {
			t.Errorf("%s on its own: %v", v, err)
		}
	}
}

// The disk's owner may present wrong data while a volume is copied. The copy is refused, nothing of
// it remains, and the source is unchanged.
func TestLiesWhileCopying(t *testing.T) {
	for name, c := range map[string]struct {
		lie  func(n *node) *blktest.Disk
		want crypt.Kind
	}{
		"blank": {func(*node) *blktest.Disk { return blktest.New(crypt.DeviceSize(size)) },
			crypt.Blank},
		"another volume": {func(n *node) *blktest.Disk {
			second(n.t.(*testing.T), n)
			return n.disks["pvc-2"]
		}, crypt.OtherVolume},
		"an older image": {func(n *node) *blktest.Disk {
			old := n.disks[id].Clone()
			closeVolume(n.t.(*testing.T), n)
			return old
		}, crypt.OlderImage},
		"record bit": {func(n *node) *blktest.Disk {
			d := n.disks[id].Clone()
			d.Flip(288<<10+48, 1)
			return d
		}, crypt.Tampered},
		"header bit": {func(n *node) *blktest.Disk {
			d := n.disks[id].Clone()
			d.Flip(4200, 1)
			return d
		}, crypt.Tampered},
	} {
		t.Run(name, func(t *testing.T) {
			n := opened(t)
			n.t = t
			shown := c.lie(n)
			honest := n.disks[id].Clone()
			before := n.state()
			n.disks[id].Become(shown)
			if _, err := n.process(0).Copy(t.Context(), copyID, id, CopyOptions{}); !errors.Is(err,
				c.want) {
				t.Errorf("%v; want %v", err, c.want)
			}

			n.nothingOf(copyID)
			n.disks[id].Become(honest)
			if !equal(n.state(), before) || len(n.suspended()) != 0 {
				t.Errorf("the source has changed: %+v", n.state())
			}
		})
	}
}

// formattingCopy returns a function that makes nodes. Their copy's process was killed in state
// FORMATTING, before it had written to the disk.
func formattingCopy(t *testing.T) func(t *testing.T) *node {
	t.Helper()
	at := func(t *testing.T, kill int) *node {
		n := opened(t)
		if _, err := n.process(kill).Copy(t.Context(), copyID, id, CopyOptions{}); !errors.Is(err,
			errDead) {
			t.Fatal(err)
		}
		return n
	}
	for kill := 1; ; kill++ {
		if st, _, err := at(t, kill).store.Get(t.Context(), copyID); err == nil &&
			st.Phase == Formatting {
			return func(t *testing.T) *node { return at(t, kill) }
		}
	}
}

// In state FORMATTING the disk of a copy contains the source's metadata, our metadata or zeros.
// Other content is not overwritten.
func TestFormattingACopyOverSomethingElse(t *testing.T) {
	formatting := formattingCopy(t)

	for name, lie := range map[string]func(n *node, d *blktest.Disk){
		"a bit of the header":  func(_ *node, d *blktest.Disk) { d.Flip(100, 1) },
		"a bit of the keyslot": func(_ *node, d *blktest.Disk) { d.Flip(100<<10, 1) },
		"a bit of the record":  func(_ *node, d *blktest.Disk) { d.Flip(288<<10+500, 1) },
		"between them":         func(_ *node, d *blktest.Disk) { d.Flip(1<<20, 1) },
		"the source, since": func(n *node, d *blktest.Disk) {
			n.process(0)
			closeVolume(n.t.(*testing.T), n)
			d.Become(n.disks[id])
		},
		"another volume's disk": func(n *node, d *blktest.Disk) {
			n.process(0)
			second(n.t.(*testing.T), n)
			d.Become(n.disks["pvc-2"])
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := formatting(t)
			lie(n, n.disks[copyID])
			writes := n.disks[copyID].Writes()
			for range 2 {
				_, err := n.process(0).Copy(t.Context(), copyID, id, CopyOptions{})
				if !errors.Is(err, crypt.NotEmpty) || n.disks[copyID].Writes() != writes {
					t.Errorf("%v", err)
				}
			}
		})
	}
}

// A state from a backup that is older than the copy does not replace the copy.
func TestCopyUnderAStateFromABackup(t *testing.T) {
	n := opened(t)
	s := n.process(0)
	copyVolume(t, s, copyID, id, CopyOptions{})
	store := n.store.(*memoryStore)
	old := store.states[copyID]
	old.State = s.newState(copyID, size, Request{Source: id})
	store.states[copyID] = old
	copied := n.disks[copyID]
	if _, err := n.process(0).Copy(t.Context(), copyID, id, CopyOptions{}); !errors.Is(err,
		crypt.NotEmpty) || n.disks[copyID] != copied {
		t.Errorf("%v", err)
	}
}

// A copy has all data of its source even if the source's state does not contain an interrupted
// expansion yet.
func TestCopyDuringAnExpansionThatWasCutShort(t *testing.T) {
	for kill := 1; ; kill++ {
		n := opened(t)
		_, cut := n.process(kill).Expand(t.Context(), id, 2*size, OpenOptions{})
		when := fmt.Sprintf("killed at step %d after %v", kill, last(n.trace))
		s := n.process(0)
		m, err := n.engine.Lookup(t.Context(), n.engine.Live()[0])
		errtest.Must(t, err)
		st := copyVolume(t, s, copyID, id, CopyOptions{Snapshot: true})
		if st.Payload < m.Targets[0].Length {
			t.Errorf("%s: the source has %d bytes, its snapshot %d", when, m.Targets[0].Length,
				st.Payload)
		}
		restored := copyVolume(t, s, "pvc-2", copyID, CopyOptions{})
		if o, err := s.Open(t.Context(), "pvc-2", OpenOptions{}); err != nil ||
			o.Mapping.Targets[0].Length != st.Payload || restored.Payload != st.Payload {
			t.Errorf("%s: restored: %+v, %v", when, o, err)
		}
		if cut == nil {
			return
		}
	}
}
