package volume

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/csi/backend"
	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/internal/blk/blktest"
	"github.com/kubeveil/kubeveil/csi/keyring"
)

// second makes another volume on the node.
func second(t *testing.T, n *node) {
	t.Helper()
	s := n.process(0)
	if _, err := s.Create(t.Context(), "pvc-2", size); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Open(t.Context(), "pvc-2", OpenOptions{}); err != nil {
		t.Fatal(err)
	}
}

// What the owner of a closed volume's disk may do. Each is refused for its reason, nothing is written, nothing is kept, and the volume opens again
// when its disk is back.
func TestLyingDisks(t *testing.T) {
	for name, c := range map[string]struct {
		lie  func(t *testing.T, n *node, d *blktest.Disk)
		want crypt.Kind
	}{
		"blank":       {func(_ *testing.T, _ *node, d *blktest.Disk) { d.Become(blktest.New(crypt.DeviceSize(size))) }, crypt.Blank},
		"reads zeros": {func(_ *testing.T, _ *node, d *blktest.Disk) { d.Tamper = func(_ int, _ int64, p []byte) { clear(p) } }, crypt.Blank},
		"swapped":     {func(t *testing.T, n *node, d *blktest.Disk) { second(t, n); d.Become(n.disks["pvc-2"]) }, crypt.OtherVolume},
		"header bit":  {func(_ *testing.T, _ *node, d *blktest.Disk) { d.Flip(4200, 1) }, crypt.Tampered},
		"record bit":  {func(_ *testing.T, _ *node, d *blktest.Disk) { d.Flip(288<<10+48, 1) }, crypt.Tampered},
		"too small":   {func(_ *testing.T, _ *node, d *blktest.Disk) { d.Resize(crypt.DeviceSize(size) - 4096) }, crypt.Truncated},
		"another mkfs": {func(_ *testing.T, _ *node, d *blktest.Disk) {
			d.Become(blktest.New(crypt.DeviceSize(size)))
			d.Flip(1080, 0x53)
		}, crypt.Foreign},
		"of another cluster": {func(t *testing.T, _ *node, d *blktest.Disk) {
			data, err := crypt.NewDataKey()
			if err != nil {
				t.Fatal(err)
			}
			other := blktest.New(crypt.DeviceSize(size))
			err = crypt.Format(other, data, crypt.Identity{Binding: keyring.Binding{Cluster: "another", Volume: id}, UUID: crypt.UUID{1}}, size)
			if err != nil {
				t.Fatal(err)
			}
			d.Become(other)
		}, crypt.OtherCluster},
	} {
		t.Run(name, func(t *testing.T) {
			n := opened(t)
			closeVolume(t, n)
			d := n.disks[id]
			honest := d.Clone()
			c.lie(t, n, d)
			before, writes := n.state(), d.Writes()
			_, err := n.process(0).Open(t.Context(), id, OpenOptions{})
			if !errors.Is(err, c.want) || !errors.As(err, new(*crypt.RefusedError)) {
				t.Errorf("%v; want %v", err, c.want)
			}
			if d.Writes() != writes || !equal(n.state(), before) {
				t.Error("something was written")
			}
			d.Tamper = nil
			d.Become(honest)
			if _, err := n.process(0).Open(t.Context(), id, OpenOptions{}); err != nil {
				t.Errorf("with its own disk: %v", err)
			}
			n.intact()
		})
	}
}

func TestOlderImages(t *testing.T) {
	n := opened(t)
	ctx := t.Context()
	images := map[string]*blktest.Disk{"while it was open": n.disks[id].Clone()}
	closeVolume(t, n)
	images["after it was closed"] = n.disks[id].Clone()
	s := n.process(0)
	if _, err := s.Open(ctx, id, OpenOptions{}); err != nil {
		t.Fatal(err)
	}
	images["before it was expanded"] = n.disks[id].Clone()
	if _, err := s.Expand(ctx, id, 2*size, OpenOptions{}); err != nil {
		t.Fatal(err)
	}
	// The power fails while it is open, and the disk comes back as it was once.
	n.reboot()
	latest := n.disks[id].Clone()
	for name, image := range images {
		n.disks[id].Become(image)
		n.disks[id].Resize(crypt.DeviceSize(2 * size))
		if _, err := n.process(0).Open(ctx, id, OpenOptions{}); !errors.Is(err, crypt.OlderImage) {
			t.Errorf("%s: %v", name, err)
		}
	}
	n.disks[id].Become(latest)
	if _, err := n.process(0).Open(ctx, id, OpenOptions{}); err != nil {
		t.Error(err)
	}
	n.intact()
}

func TestStateFromABackup(t *testing.T) {
	n := opened(t)
	store := n.store.(*memoryStore)
	old := store.states[id]
	closeVolume(t, n)
	if _, err := n.process(0).Open(t.Context(), id, OpenOptions{}); err != nil {
		t.Fatal(err)
	}
	n.reboot()
	store.states[id] = old
	if _, err := n.process(0).Open(t.Context(), id, OpenOptions{}); !errors.Is(err, crypt.NewerThanState) {
		t.Errorf("%v", err)
	}
	// Even a state from before the volume was formatted does not get it formatted.
	old.State = State{Volume: id, Cluster: cluster, Phase: New, Payload: size, Content: Unmade}
	store.states[id] = old
	writes := n.disks[id].Writes()
	if _, err := n.process(0).Open(t.Context(), id, OpenOptions{}); !errors.Is(err, crypt.NotEmpty) || n.disks[id].Writes() != writes {
		t.Errorf("%v", err)
	}
	n.intact()
}

// restoredWhileOpen is a volume that somebody has open, and whose state is from a backup of before it was opened.
func restoredWhileOpen(t *testing.T) (n *node, mapping string) {
	n = opened(t)
	store := n.store.(*memoryStore)
	old := store.states[id]
	closeVolume(t, n)
	if _, err := n.process(0).Open(t.Context(), id, OpenOptions{}); err != nil {
		t.Fatal(err)
	}
	mapping = n.engine.Live()[0]
	n.engine.Edit(mapping, func(m *crypt.Mapping) { m.Open = 1 })
	store.states[id] = old
	return n, mapping
}

// What is mounted is newer than a state from a backup: a person decides, and until then nothing is done to it.
func TestStateFromABackupWhileOpen(t *testing.T) {
	for name, do := range map[string]func(ctx context.Context, s *Set) error{
		"open":   openAgain,
		"close":  func(ctx context.Context, s *Set) error { _, err := s.Close(ctx, id, nil); return err },
		"delete": func(ctx context.Context, s *Set) error { _, err := s.Delete(ctx, id); return err },
		"copy":   func(ctx context.Context, s *Set) error { _, err := s.Copy(ctx, copyID, id, CopyOptions{}); return err },
		"find":   func(ctx context.Context, s *Set) error { _, err := s.Find(ctx, id); return err },
	} {
		t.Run(name, func(t *testing.T) {
			n, mapping := restoredWhileOpen(t)
			before, writes := n.state(), n.disks[id].Writes()
			for range 2 {
				if err := do(t.Context(), n.process(0)); !errors.Is(err, crypt.NewerThanState) {
					t.Errorf("%v", err)
				}
			}
			if live := n.engine.Live(); len(live) != 1 || live[0] != mapping || len(n.suspended()) != 0 {
				t.Errorf("mappings %v, suspended %v", live, n.suspended())
			}
			if n.disks[id] == nil || n.disks[id].Writes() != writes || !equal(n.state(), before) {
				t.Errorf("something was written: %+v", n.state())
			}
		})
	}
	// One that was fenced already keeps nothing: the disk says the rest.
	n, mapping := restoredWhileOpen(t)
	if err := n.engine.Fence(t.Context(), mapping); err != nil {
		t.Fatal(err)
	}
	if err := openAgain(t.Context(), n.process(0)); !errors.Is(err, crypt.NewerThanState) {
		t.Errorf("with a dead one: %v", err)
	}
}

// While a volume is formatted its disk is exchanged, or somebody else writes there.
func TestFormattingElsewhere(t *testing.T) {
	interrupted := func(t *testing.T) *node {
		n := newNode(t)
		if _, err := n.process(0).Create(t.Context(), id, size); err != nil {
			t.Fatal(err)
		}
		for kill := 1; ; kill++ {
			n.process(0)
			if _, err := n.process(kill).Open(t.Context(), id, OpenOptions{}); !errors.Is(err, errDead) {
				t.Fatal(err)
			}
			if n.state().Phase == Formatting {
				return n
			}
		}
	}
	n := interrupted(t)
	n.disks[id].Flip(100<<10, 1)
	writes := n.disks[id].Writes()
	if _, err := n.process(0).Open(t.Context(), id, OpenOptions{}); !errors.Is(err, crypt.NotEmpty) || n.disks[id].Writes() != writes {
		t.Errorf("somebody wrote there: %v", err)
	}
	n = interrupted(t)
	s := n.process(0)
	s.Backend = renamed{s.Backend}
	if _, err := s.Open(t.Context(), id, OpenOptions{}); !errors.Is(err, crypt.OtherVolume) || n.disks[id].Writes() != 0 {
		t.Errorf("another device: %v", err)
	}
}

type renamed struct{ backend.Backend }

func (r renamed) Attach(ctx context.Context, v string) (backend.Device, error) {
	d, err := r.Backend.Attach(ctx, v)
	d.ID += "-other"
	return d, err
}

// Mappings as they may be found after a restart. All are replaced, and the bad one has lost its disk even while it is held open.
func TestZombies(t *testing.T) {
	for name, spoil := range map[string]func(n *node, mapping string){
		"dead disk":      func(n *node, m string) { n.engine.Kill(m) },
		"another uuid":   func(n *node, m string) { n.engine.Edit(m, func(m *crypt.Mapping) { m.UUID = "CRYPT-LUKS2-x" }) },
		"another size":   func(n *node, m string) { n.engine.Edit(m, func(m *crypt.Mapping) { m.Targets[0].Length -= 4096 }) },
		"no table":       func(n *node, m string) { n.engine.Edit(m, func(m *crypt.Mapping) { m.Targets = nil }) },
		"another device": func(n *node, _ string) { n.numbers[id]++ },
		"held open":      func(n *node, m string) { n.engine.Kill(m); n.engine.Edit(m, func(m *crypt.Mapping) { m.Open = 1 }) },
	} {
		t.Run(name, func(t *testing.T) {
			n := opened(t)
			found := n.engine.Live()[0]
			spoil(n, found)
			o, err := n.process(0).Open(t.Context(), id, OpenOptions{})
			if err != nil || o.Adopted || o.Mapping.Name == found {
				t.Fatalf("%+v, %v", o, err)
			}
			if live := n.engine.Live(); len(live) != 1 || live[0] != o.Mapping.Name {
				t.Errorf("mappings %v", live)
			}
			if c, err := n.process(0).Close(t.Context(), id, nil); err != nil || !c.Sealed {
				t.Errorf("then close: %+v, %v", c, err)
			}
		})
	}
}

// A mapping that is not as it should be may be mounted all the same: it is left when nothing could take its place.
func TestZombiesThatCannotBeReplaced(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(n *node, s *Set)
		want  error
	}{
		"key service away": {func(_ *node, s *Set) { s.Keys = awayProvider{} }, keyring.ErrUnavailable},
		"another disk":     {func(n *node, _ *Set) { n.disks[id].Flip(4200, 1) }, crypt.Tampered},
		// The same epoch: the backup is from before an expansion.
		"state from a backup": {func(n *node, _ *Set) {
			store := n.store.(*memoryStore)
			old := store.states[id]
			if _, err := n.process(0).Expand(n.t.Context(), id, 2*size, OpenOptions{}); err != nil {
				n.t.Fatal(err)
			}
			store.states[id] = old
		}, crypt.NewerThanState},
	} {
		t.Run(name, func(t *testing.T) {
			n := opened(t)
			mapping := n.engine.Live()[0]
			n.engine.Edit(mapping, func(m *crypt.Mapping) { m.Open = 1 })
			s := n.process(0)
			c.spoil(n, s)
			hook := n.engine.Hook
			n.engine.Hook = func(op, name string) error {
				if op == "probe" {
					return unix.EIO
				}
				return hook(op, name)
			}
			before := n.state()
			if _, err := s.Open(t.Context(), id, OpenOptions{}); !errors.Is(err, c.want) {
				t.Errorf("%v; want %v", err, c.want)
			}
			if live := n.engine.Live(); len(live) != 1 || live[0] != mapping || !equal(n.state(), before) {
				t.Errorf("mappings %v, state %+v", live, n.state())
			}
		})
	}
}

func TestCloseWhileBusy(t *testing.T) {
	n := opened(t)
	m := n.engine.Live()[0]
	n.engine.Edit(m, func(m *crypt.Mapping) { m.Open = 1 })
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
		"expand": func() error { _, err := s.Expand(t.Context(), id, 2*size, OpenOptions{}); return err }(),
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
		t.Errorf("closing what another node has: %v, writer %s", err, n.state().Writer)
	}
	if o, err := s.Open(t.Context(), id, OpenOptions{TakeOver: "node-1"}); err != nil || o.State.Writer != "node-2" {
		t.Errorf("taken over: %+v, %v", o, err)
	}
	if _, err := n.process(0).Open(t.Context(), id, OpenOptions{}); !errors.As(err, &busy) {
		t.Errorf("the former node: %v", err)
	}
}

func TestKeyServiceAway(t *testing.T) {
	n := opened(t)
	ctx := t.Context()
	away := awayProvider{newProvider(t, 1)}
	n.keys = away
	s := n.process(0)
	if o, err := s.Open(ctx, id, OpenOptions{}); err != nil || !o.Adopted {
		t.Errorf("what is open: %+v, %v", o, err)
	}
	if _, err := s.Create(ctx, "new", size); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Open(ctx, "new", OpenOptions{}); !errors.Is(err, keyring.ErrUnavailable) || n.disks["new"].Writes() != 0 {
		t.Errorf("a new volume: %v", err)
	}
	if st, _, err := n.store.Get(ctx, "new"); err != nil || st.Phase != New {
		t.Errorf("a new volume: %+v, %v", st, err)
	}
	c, err := s.Close(ctx, id, nil)
	if err != nil || c.Sealed || !errors.Is(c.Why, keyring.ErrUnavailable) || n.state().Writer != "" {
		t.Errorf("closed: %+v, %v", c, err)
	}
	if _, err := s.Open(ctx, id, OpenOptions{}); !errors.Is(err, keyring.ErrUnavailable) {
		t.Errorf("opened: %v", err)
	}
	if _, err := s.Open(ctx, id, OpenOptions{Keys: newProvider(t, 2)}); !errors.Is(err, keyring.ErrWrongKey) {
		t.Errorf("with a wrong key: %v", err)
	}
	if _, err := s.Open(ctx, id, OpenOptions{Keys: newProvider(t, 1)}); err != nil {
		t.Errorf("with the key: %v", err)
	}
	n.intact()
}

// idle is a provider that is asked only while no turn is held: it may be away for long.
type idle struct {
	keyring.Provider
	t *testing.T
	s *Set
}

func (i idle) Wrap(ctx context.Context, b keyring.Binding, key *keyring.Secret) (keyring.Wrapped, error) {
	i.check("wrap")
	return i.Provider.Wrap(ctx, b, key)
}

func (i idle) Unwrap(ctx context.Context, b keyring.Binding, w keyring.Wrapped) (*keyring.Secret, error) {
	i.check("unwrap")
	return i.Provider.Unwrap(ctx, b, w)
}

func (i idle) check(what string) {
	if n := len(i.s.reading); n != 0 {
		i.t.Errorf("%s while %d volumes are read", what, n)
	}
}

// Disks that hang hold up others until these have waited long enough; a key service that hangs holds up nobody.
func TestDisksThatHang(t *testing.T) {
	n := opened(t)
	closeVolume(t, n)
	s := n.process(0)
	keys := idle{newProvider(t, 1), t, s}
	if _, err := s.Create(t.Context(), "new", size); err != nil {
		t.Fatal(err)
	}
	for range readers {
		s.reading <- struct{}{}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := s.Open(ctx, id, OpenOptions{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("opened: %v", err)
	}
	if _, err := s.Open(ctx, "new", OpenOptions{}); !errors.Is(err, context.DeadlineExceeded) || n.disks["new"].Writes() != 0 {
		t.Errorf("formatted: %v", err)
	}
	for range readers {
		<-s.reading
	}
	for _, v := range []string{id, "new"} {
		if _, err := s.Open(t.Context(), v, OpenOptions{Keys: keys}); err != nil {
			t.Errorf("then %s: %v", v, err)
		}
	}
	if _, err := s.Create(t.Context(), "newer", size); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Open(t.Context(), "newer", OpenOptions{Keys: keys}); err != nil {
		t.Error(err)
	}
	n.intact()
}

type awayProvider struct{ keyring.Provider }

func (awayProvider) Wrap(context.Context, keyring.Binding, *keyring.Secret) (keyring.Wrapped, error) {
	return keyring.Wrapped{}, keyring.ErrUnavailable
}

func (awayProvider) Unwrap(context.Context, keyring.Binding, keyring.Wrapped) (*keyring.Secret, error) {
	return nil, keyring.ErrUnavailable
}

// A wrapped key of another volume, put into the state by somebody who can write there.
func TestSwappedKeys(t *testing.T) {
	n := opened(t)
	second(t, n)
	store := n.store.(*memoryStore)
	closeVolume(t, n)
	s := store.states[id]
	s.State.Key = store.states["pvc-2"].State.Key
	store.states[id] = s
	if _, err := n.process(0).Open(t.Context(), id, OpenOptions{}); !errors.As(err, new(*keyring.BindingError)) {
		t.Errorf("%v", err)
	}
}

func TestACopiedDiskOpensNoMoreAfterDeletion(t *testing.T) {
	n := opened(t)
	closeVolume(t, n)
	copied := n.disks[id].Clone()
	if r, err := n.process(0).Delete(t.Context(), id); err != nil || !r.Shredded {
		t.Fatalf("%+v, %v", r, err)
	}
	n.disks[id] = copied
	for name, forget := range map[string]func() error{
		"as it is":       func() error { return nil },
		"made once more": func() error { return errors.Join(n.process(0).Forget(t.Context(), id), create(n)) },
	} {
		if err := forget(); err != nil {
			t.Fatal(err)
		}
		_, err := n.process(0).Open(t.Context(), id, OpenOptions{})
		if !errors.Is(err, ErrDeleted) && !errors.Is(err, crypt.NotEmpty) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Two volumes' disks were exchanged: deleting the one does not take the other's only ciphertext with it.
func TestDeleteOnAnotherVolumesDisk(t *testing.T) {
	for name, copied := range map[string]bool{"another volume": false, "its own source": true} {
		t.Run(name, func(t *testing.T) {
			n := opened(t)
			closeVolume(t, n)
			if copied {
				copyVolume(t, n.process(0), "pvc-2", id, CopyOptions{})
			} else {
				second(t, n)
				if _, err := n.process(0).Close(t.Context(), "pvc-2", nil); err != nil {
					t.Fatal(err)
				}
			}
			n.disks[id], n.disks["pvc-2"] = n.disks["pvc-2"], n.disks[id]
			before := n.disks["pvc-2"].Writes()
			for range 2 {
				r, err := n.process(0).Delete(t.Context(), "pvc-2")
				if !errors.Is(err, crypt.OtherVolume) || r.Shredded || n.disks["pvc-2"] == nil || n.disks["pvc-2"].Writes() != before {
					t.Fatalf("%+v, %v", r, err)
				}
			}
			if st := n.stateOf("pvc-2"); st.Phase != Deleted || !st.Key.IsZero() {
				t.Errorf("%+v", st)
			}
			// Somebody exchanges them back.
			n.disks[id], n.disks["pvc-2"] = n.disks["pvc-2"], n.disks[id]
			if r, err := n.process(0).Delete(t.Context(), "pvc-2"); err != nil || !r.Shredded || n.disks["pvc-2"] != nil {
				t.Errorf("%+v, %v", r, err)
			}
			if _, err := n.process(0).Open(t.Context(), id, OpenOptions{}); err != nil {
				t.Error(err)
			}
			n.intact()
		})
	}
}

// A copy that died before it was one of its own still says that it is its source, and goes.
func TestDeleteAnUnfinishedCopy(t *testing.T) {
	n := formattingCopy(t)(t)
	if r, err := n.process(0).Delete(t.Context(), copyID); err != nil || !r.Shredded || n.disks[copyID] != nil {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := n.process(0).Open(t.Context(), id, OpenOptions{}); err != nil {
		t.Error(err)
	}
	n.intact()
}

func create(n *node) error {
	_, err := n.process(0).Create(n.t.Context(), id, size)
	return err
}

func TestDiskFull(t *testing.T) {
	n := opened(t)
	s := n.process(0)
	s.Backend = full{s.Backend}
	before := n.state()
	if _, err := s.Expand(t.Context(), id, 2*size, OpenOptions{}); !errors.Is(err, backend.ErrFull) || !equal(n.state(), before) {
		t.Errorf("%v", err)
	}
	if o, err := s.Open(t.Context(), id, OpenOptions{}); err != nil || !o.Adopted {
		t.Errorf("%+v, %v", o, err)
	}
}

type full struct{ backend.Backend }

func (full) Expand(context.Context, string, int64) error { return backend.ErrFull }

// A mapping that cannot be made leaves a volume that opens when it can.
func TestNoDeviceMapper(t *testing.T) {
	n := opened(t)
	closeVolume(t, n)
	hook := n.engine.Hook
	n.engine.Hook = func(op, _ string) error {
		if op == "create" {
			return fmt.Errorf("%w: %w", crypt.ErrNotSupported, unix.EPERM)
		}
		return nil
	}
	for range 3 {
		if _, err := n.process(0).Open(t.Context(), id, OpenOptions{}); !errors.Is(err, crypt.ErrNotSupported) {
			t.Errorf("%v", err)
		}
	}
	n.engine.Hook = hook
	if _, err := n.process(0).Open(t.Context(), id, OpenOptions{}); err != nil {
		t.Error(err)
	}
	n.intact()
}

// Many processes and goroutines at once: one works, the others are told so.
func TestTogether(t *testing.T) {
	n := opened(t)
	locks := t.TempDir()
	var wg sync.WaitGroup
	for range 2 {
		s := n.process(0)
		s.Locks = locks
		for range 8 {
			wg.Go(func() {
				if o, err := s.Open(t.Context(), id, OpenOptions{}); err != nil && !errors.Is(err, ErrInProgress) || err == nil && !o.Adopted {
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
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Open(t.Context(), id, OpenOptions{}); !errors.Is(err, ErrInProgress) {
		t.Errorf("another process: %v", err)
	}
	unlock()
	if _, err := b.Open(t.Context(), id, OpenOptions{}); err != nil {
		t.Error(err)
	}
}

func TestNames(t *testing.T) {
	n := newNode(t)
	s := n.process(0)
	for _, name := range []string{"", "../x", "a/b", ".x", string(make([]byte, 129))} {
		if _, err := s.Create(t.Context(), name, size); !errors.Is(err, backend.ErrName) {
			t.Errorf("made %q: %v", name, err)
		}
		if _, err := s.Open(t.Context(), name, OpenOptions{}); !errors.Is(err, backend.ErrName) {
			t.Errorf("opened %q: %v", name, err)
		}
	}
}
