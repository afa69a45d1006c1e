package volume

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/csi/backend"
	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/internal/blk/blktest"
	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// second makes another volume on the node.
func second(t *testing.T, n *node) {
	t.Helper()
	s := n.process(0)
	if _, err := s.Create(t.Context(), "pvc-2", size, Request{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Open(t.Context(), "pvc-2", OpenOptions{}); err != nil {
		t.Fatal(err)
	}
}

// The owner of a closed volume's disk may make these changes. Each is refused for its own reason,
// nothing is written, no mapping is kept, and the volume opens again when its disk is restored.
func TestTamperedDisksAreRefusedForTheirReason(t *testing.T) {
	for name, c := range map[string]struct {
		lie  func(t *testing.T, n *node, d *blktest.Disk)
		want crypt.Kind
	}{
		"blank": {func(_ *testing.T, _ *node, d *blktest.Disk) {
			d.Become(blktest.New(crypt.DeviceSize(size)))
		}, crypt.Blank},
		"reads zeros": {func(_ *testing.T, _ *node, d *blktest.Disk) {
			d.Tamper = func(_ int, _ int64, p []byte) { clear(p) }
		}, crypt.Blank},
		"swapped": {func(t *testing.T, n *node,
			d *blktest.Disk) {
			second(t, n)
			d.Become(n.disks["pvc-2"])
		}, crypt.OtherVolume},
		"header bit": {func(_ *testing.T, _ *node, d *blktest.Disk) { d.Flip(4200, 1) },
			crypt.Tampered},
		"record bit": {func(_ *testing.T, _ *node, d *blktest.Disk) { d.Flip(288<<10+48, 1) },
			crypt.Tampered},
		"too small": {func(_ *testing.T, _ *node,
			d *blktest.Disk) {
			d.Resize(crypt.DeviceSize(size) - 4096)
		}, crypt.Truncated},
		"changed between two reads": {func(_ *testing.T, _ *node, d *blktest.Disk) {
			reads := 0
			d.Tamper = func(_ int, off int64, p []byte) {
				if reads++; reads > 1 && off == 0 {
					p[4200] ^= 1
				}
			}
		}, crypt.Changed},
		"another mkfs": {func(_ *testing.T, _ *node, d *blktest.Disk) {
			d.Become(blktest.New(crypt.DeviceSize(size)))
			d.Flip(1080, 0x53)
		}, crypt.Foreign},
		"of another cluster": {func(t *testing.T, _ *node, d *blktest.Disk) {
			data, err := crypt.NewDataKey()
			errtest.Must(t, err)
			other := blktest.New(crypt.DeviceSize(size))
			err = crypt.Format(other, data,
				crypt.Identity{Binding: keyring.Binding{Cluster: "another", Volume: id},
					UUID: crypt.UUID{1}}, size)
			errtest.Must(t, err)
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

func TestImagesOfFormerEpochsAreRefused(t *testing.T) {
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

	// The power fails while the volume is open, and the disk returns with an earlier content.
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
	if _, err := n.process(0).Open(t.Context(), id, OpenOptions{}); !errors.Is(err,
		crypt.NewerThanState) {
		t.Errorf("%v", err)
	}
	// Even with a state from before the volume was formatted, the disk is not formatted again.
	old.State = State{Volume: id, Cluster: cluster, Phase: New, Payload: size, Content: Unmade}
	store.states[id] = old
	writes := n.disks[id].Writes()
	if _, err := n.process(0).Open(t.Context(), id, OpenOptions{}); !errors.Is(err,
		crypt.NotEmpty) || n.disks[id].Writes() != writes {
		t.Errorf("%v", err)
	}
	n.intact()
}

// restoredWhileOpen returns a node with a volume that a process has open. The volume's state is
// from a backup that was made before the volume was opened.
func restoredWhileOpen(t *testing.T) (n *node, mapping string) {
	n = opened(t)
	store := n.store.(*memoryStore)
	old := store.states[id]
	closeVolume(t, n)
	if _, err := n.process(0).Open(t.Context(), id, OpenOptions{}); err != nil {
		t.Fatal(err)
	}
	mapping = n.engine.Live()[0]
	n.engine.Edit(mapping, func(m *dmcrypt.Mapping) { m.Open = 1 })
	store.states[id] = old
	return n, mapping
}

// A mounted volume is newer than its state, which was restored from a backup. An administrator must
// decide, and until then nothing is changed.
func TestStateFromABackupWhileOpen(t *testing.T) {
	for name, do := range map[string]func(ctx context.Context, s *Set) error{
		"open": openAgain,
		"close": func(ctx context.Context, s *Set) error {
			_, err := s.Close(ctx, id, nil)
			return err
		},
		"delete": func(ctx context.Context,
			s *Set) error {
			_, err := s.Delete(ctx, id)
			return err
		},
		"copy": func(ctx context.Context, s *Set) error {
			_, err := s.Copy(ctx, copyID, id, CopyOptions{})
			return err
		},
		"find": func(ctx context.Context, s *Set) error { _, err := s.Find(ctx, id); return err },
	} {
		t.Run(name, func(t *testing.T) {
			n, mapping := restoredWhileOpen(t)
			before, writes := n.state(), n.disks[id].Writes()
			for range 2 {
				if err := do(t.Context(), n.process(0)); !errors.Is(err, crypt.NewerThanState) {
					t.Errorf("%v", err)
				}
			}
			if live := n.engine.Live(); len(live) != 1 || live[0] != mapping ||
				len(n.suspended()) != 0 {
				t.Errorf("mappings %v, suspended %v", live, n.suspended())
			}
			if n.disks[id] == nil || n.disks[id].Writes() != writes || !equal(n.state(), before) {
				t.Errorf("something was written: %+v", n.state())
			}
		})
	}

	// A fenced mapping can be closed without the key, because the disk has everything else.
	n, mapping := restoredWhileOpen(t)
	errtest.Must(t, n.engine.Fence(t.Context(), mapping))

	if err := openAgain(t.Context(), n.process(0)); !errors.Is(err, crypt.NewerThanState) {
		t.Errorf("with a dead mapping: %v", err)
	}
}

// While a volume is formatted its disk is exchanged, or another program writes there.
func TestFormattingElsewhere(t *testing.T) {
	interrupted := func(t *testing.T) *node {
		n := newNode(t)
		if _, err := n.process(0).Create(t.Context(), id, size, Request{}); err != nil {
			t.Fatal(err)
		}
		for kill := 1; ; kill++ {
			n.process(0)
			if _, err := n.process(kill).Open(t.Context(), id, OpenOptions{}); !errors.Is(err,
				errDead) {
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
	if _, err := n.process(0).Open(t.Context(), id, OpenOptions{}); !errors.Is(err,
		crypt.NotEmpty) || n.disks[id].Writes() != writes {
		t.Errorf("after another program wrote to the disk: %v", err)
	}

	n = interrupted(t)
	s := n.process(0)
	s.Backend = renamed{s.Backend}
	if _, err := s.Open(t.Context(), id, OpenOptions{}); !errors.Is(err, crypt.OtherVolume) ||
		n.disks[id].Writes() != 0 {
		t.Errorf("another device: %v", err)
	}
}

type renamed struct{ backend.Backend }

func (r renamed) Attach(ctx context.Context, v string) (backend.Device, error) {
	d, err := r.Backend.Attach(ctx, v)
	d.ID += "-other"
	return d, err
}

func TestDiskFull(t *testing.T) {
	n := opened(t)
	s := n.process(0)
	s.Backend = full{s.Backend}
	before := n.state()
	if _, err := s.Expand(t.Context(), id, 2*size, OpenOptions{}); !errors.Is(err,
		backend.ErrFull) || !equal(n.state(), before) {
		t.Errorf("%v", err)
	}
	if o, err := s.Open(t.Context(), id, OpenOptions{}); err != nil || !o.Adopted {
		t.Errorf("%+v, %v", o, err)
	}
}

type full struct{ backend.Backend }

func (full) Expand(context.Context, string, int64) error { return backend.ErrFull }

// If a mapping cannot be made, the volume stays unchanged. It opens once a mapping can be made.
func TestNoDeviceMapper(t *testing.T) {
	n := opened(t)
	closeVolume(t, n)
	hook := n.engine.Hook
	n.engine.Hook = func(op, _ string) error {
		if op == "create" {
			return fmt.Errorf("%w: %w", dmcrypt.ErrNotSupported, unix.EPERM)
		}
		return nil
	}
	for range 3 {
		if _, err := n.process(0).Open(t.Context(), id, OpenOptions{}); !errors.Is(err,
			dmcrypt.ErrNotSupported) {
			t.Errorf("%v", err)
		}
	}
	n.engine.Hook = hook
	if _, err := n.process(0).Open(t.Context(), id, OpenOptions{}); err != nil {
		t.Error(err)
	}
	n.intact()
}

func TestNames(t *testing.T) {
	n := newNode(t)
	s := n.process(0)
	for _, name := range []string{"", "../x", "a/b", ".x", string(make([]byte, 129))} {
		if _, err := s.Create(t.Context(), name, size, Request{}); !errors.Is(err, backend.ErrName) {
			t.Errorf("made %q: %v", name, err)
		}
		if _, err := s.Open(t.Context(), name, OpenOptions{}); !errors.Is(err, backend.ErrName) {
			t.Errorf("opened %q: %v", name, err)
		}
	}
}
