package volume

import (
	"errors"
	"testing"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/internal/blk/blktest"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

func TestACopiedDiskOpensNoMoreAfterDeletion(t *testing.T) {
	n := opened(t)
	closeVolume(t, n)
	copied := n.disks[id].Clone()
	if r, err := n.process(0).Delete(t.Context(), id); err != nil || !r.Shredded {
		t.Fatalf("%+v, %v", r, err)
	}
	n.disks[id] = copied
	for name, forget := range map[string]func() error{
		"as it is": func() error { return nil },
		"made once more": func() error {
			return errors.Join(n.process(0).Forget(t.Context(), id), create(n))
		},
	} {
		errtest.Must(t, forget())
		_, err := n.process(0).Open(t.Context(), id, OpenOptions{})
		if !errors.Is(err, ErrDeleted) && !errors.Is(err, crypt.NotEmpty) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The disks of two volumes were exchanged. Deleting one volume does not destroy the only ciphertext
// of the other.
func TestDeleteOnAnotherVolumesDisk(t *testing.T) {
	for name, copied := range map[string]bool{"another volume": false, "its own source": true} {
		t.Run(name, func(t *testing.T) {
			n := opened(t)
			closeVolume(t, n)
			if copied {
				copyVolume(t, n.process(0), "pvc-2", id, CopyOptions{})
			} else {
				second(t, n)
				errtest.Must(t, errtest.Of(n.process(0).Close(t.Context(), "pvc-2", nil)))
			}

			n.disks[id], n.disks["pvc-2"] = n.disks["pvc-2"], n.disks[id]
			before := n.disks["pvc-2"].Writes()
			for range 2 {
				r, err := n.process(0).Delete(t.Context(), "pvc-2")
				if !errors.Is(err, crypt.OtherVolume) || r.Shredded || n.disks["pvc-2"] == nil ||
					n.disks["pvc-2"].Writes() != before {
					t.Fatalf("%+v, %v", r, err)
				}
			}

			if st := n.stateOf("pvc-2"); st.Phase != Deleted || !st.Key.IsZero() {
				t.Errorf("%+v", st)
			}

			// The disks are exchanged back.
			n.disks[id], n.disks["pvc-2"] = n.disks["pvc-2"], n.disks[id]
			if r, err := n.process(0).Delete(t.Context(), "pvc-2"); err != nil || !r.Shredded ||
				n.disks["pvc-2"] != nil {
				t.Errorf("%+v, %v", r, err)
			}
			if _, err := n.process(0).Open(t.Context(), id, OpenOptions{}); err != nil {
				t.Error(err)
			}

			n.intact()
		})
	}
}

// A copy that was interrupted before it had its own record still has the record of its source. It
// can be deleted.
func TestDeleteAnUnfinishedCopy(t *testing.T) {
	n := formattingCopy(t)(t)
	if r, err := n.process(0).Delete(t.Context(), copyID); err != nil || !r.Shredded ||
		n.disks[copyID] != nil {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := n.process(0).Open(t.Context(), id, OpenOptions{}); err != nil {
		t.Error(err)
	}
	n.intact()
}

func create(n *node) error {
	_, err := n.process(0).Create(n.t.Context(), id, size, Request{})
	return err
}

// A backing that may belong to another volume is kept until an administrator has removed it. The
// deleted volume's key is destroyed nevertheless.
func TestDeleteLeavesABackingOfUnknownOwner(t *testing.T) {
	closed := func(spoil func(d *blktest.Disk)) func(t *testing.T) *node {
		return func(t *testing.T) *node {
			n := opened(t)
			closeVolume(t, n)
			spoil(n.disks[id])
			return n
		}
	}

	foreign := func(d *blktest.Disk) {
		d.Become(blktest.New(crypt.DeviceSize(size)))
		d.Flip(1080, 0x53)
	}
	for name, c := range map[string]struct {
		node func(t *testing.T) *node
		// elsewhere reports whether the volume is found on a device other than the one that was
		// formatted. keeps reports whether the backend keeps a deleted backing.
		elsewhere, keeps bool
		// why is the reason for refusing the disk. left reports whether the disk stays, which is an
		// error.
		why  error
		left bool
	}{
		"its record is gone": {node: closed(func(d *blktest.Disk) {
			d.Flip(288<<10, 1)
			d.Flip(304<<10, 1)
		}), why: crypt.Foreign, left: true},
		"another file system":       {node: closed(foreign), why: crypt.Foreign, left: true},
		"another file system, kept": {node: closed(foreign), keeps: true, why: crypt.Foreign},
		"something, cut off": {node: closed(func(d *blktest.Disk) { d.Resize(8192) }),
			why: crypt.Truncated, left: true},
		"zeros, on another device": {node: closed(blank), elsewhere: true, why: crypt.Blank,
			left: true},
		"zeros":                           {node: closed(blank)},
		"nothing":                         {node: closed(func(d *blktest.Disk) { d.Resize(0) })},
		"its own, on another device":      {node: closed(func(*blktest.Disk) {}), elsewhere: true},
		"never formatted, with something": {node: withSomething, why: crypt.Foreign, left: true},
		"formatting was cut short":        {node: cutShort},
		"cut short, on another device": {node: cutShort, elsewhere: true, why: crypt.Foreign,
			left: true},
	} {
		t.Run(name, func(t *testing.T) {
			n := c.node(t)
			n.keeps = c.keeps
			s := n.process(0)
			if c.elsewhere {
				s.Backend = renamed{s.Backend}
			}

			writes := n.disks[id].Writes()
			r, err := s.Delete(t.Context(), id)
			if (err != nil) != c.left || !errors.Is(r.Why, c.why) || r.Shredded != (c.why == nil) {
				t.Errorf("%+v, %v; want why %v, left %v", r, err, c.why, c.left)
			}
			if d := n.disks[id]; (d != nil) != c.left || c.left && d.Writes() != writes {
				t.Errorf("the backing: %v", d)
			}
			if st := n.state(); st.Phase != Deleted || !st.Key.IsZero() {
				t.Errorf("%+v", st)
			}

			delete(n.disks, id)
			if _, err := s.Delete(t.Context(), id); err != nil {
				t.Errorf("once the backing was removed: %v", err)
			}
		})
	}
}

// blank replaces a disk with a blank disk.
func blank(d *blktest.Disk) { d.Become(blktest.New(crypt.DeviceSize(size))) }

// withSomething returns a node with a volume that was made and whose disk already has data.
func withSomething(t *testing.T) *node {
	n := newNode(t)
	errtest.Must(t, create(n))
	n.add(id, blktest.New(crypt.DeviceSize(size)))
	n.disks[id].Flip(0, 1)
	return n
}

// cutShort returns a node with a volume whose formatting was interrupted before its record was
// written.
func cutShort(t *testing.T) *node {
	n := newNode(t)
	errtest.Must(t, create(n))
	for kill := 1; n.state().Phase != Formatting; kill++ {
		if _, err := n.process(kill).Open(t.Context(), id, OpenOptions{}); !errors.Is(err,
			errDead) {
			t.Fatal(err)
		}
	}
	n.disks[id].Flip(100<<10, 1)
	return n
}

// A copy that failed before data was copied may leave its state. It is deleted like any other
// volume, and its source is unchanged.
func TestDeleteACopyThatWasNotBegun(t *testing.T) {
	n := opened(t)
	s := n.process(0)
	n.goesOn = true
	for n.kill = 1; ; n.kill++ {
		n.steps = 0
		if _, err := s.Copy(t.Context(), copyID, id, CopyOptions{}); err == nil {
			t.Fatal("it never left its state alone")
		}
		if st, _, err := n.store.Get(t.Context(), copyID); err == nil && st.Phase == New &&
			n.disks[copyID] == nil {
			break
		}
	}
	n.kill = 0
	if _, err := s.Delete(t.Context(), copyID); err != nil || n.stateOf(copyID).Phase != Deleted {
		t.Errorf("%v, %+v", err, n.stateOf(copyID))
	}
	errtest.Check(t, openAgain(t.Context(), s))
	n.intact()
}
