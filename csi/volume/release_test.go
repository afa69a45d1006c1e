package volume

import (
	"context"
	"errors"
	"testing"

	"github.com/kubeveil/kubeveil/csi/backend"
	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/internal/blk"
	"github.com/kubeveil/kubeveil/csi/internal/blk/blktest"
)

// attached is a backend that records which volumes have a device.
type attached struct {
	backend.Backend
	volumes map[string]bool
}

func (a attached) Attach(ctx context.Context, v string) (backend.Device, error) {
	d, err := a.Backend.Attach(ctx, v)
	if err == nil {
		a.volumes[v] = true
	}
	return d, err
}

func (a attached) Detach(ctx context.Context, v string) error {
	delete(a.volumes, v)
	return a.Backend.Detach(ctx, v)
}

// A volume that could not be opened does not keep a device, because no later call will close it. A
// device with a mapping on it is kept.
func TestWhatIsRefusedHasNoDevice(t *testing.T) {
	notEmpty := func(n *node) {
		n.store.(*memoryStore).states[id] = stored{1,
			State{Volume: id, Cluster: cluster, Phase: New, Payload: size, Content: Unmade}}
	}
	for name, c := range map[string]struct {
		open  bool
		spoil func(n *node, s *Set)
		do    func(ctx context.Context, s *Set) error
	}{
		"blank disk": {false, func(n *node, _ *Set) {
			n.disks[id].Become(blktest.New(crypt.DeviceSize(size)))
		}, openAgain},
		"key service away": {false,
			func(_ *node, s *Set) { s.Keys = awayProvider{} }, openAgain},
		"new, on a disk that is not empty": {false, func(n *node, _ *Set) { notEmpty(n) },
			openAgain},
		"copy of that": {false, func(n *node, _ *Set) { notEmpty(n) },
			func(ctx context.Context, s *Set) error {
				_, err := s.Copy(ctx, copyID, id, CopyOptions{})
				return err
			}},
		"mapping that nothing can replace": {true, func(n *node, s *Set) {
			n.engine.Kill(n.engine.Live()[0])
			s.Keys = awayProvider{}
		}, openAgain},
	} {
		t.Run(name, func(t *testing.T) {
			n := opened(t)
			if !c.open {
				closeVolume(t, n)
			}

			s := n.process(0)
			on := attached{s.Backend, map[string]bool{}}
			s.Backend = on
			c.spoil(n, s)
			if err := c.do(t.Context(), s); err == nil {
				t.Error("the disk was not refused")
			}
			if on.volumes[id] != c.open {
				t.Errorf("attached: %v, want %v", on.volumes[id], c.open)
			}
		})
	}
}

// An incomplete copy that cannot be read at the moment does not keep a device either.
func TestUnfinishedCopyThatCannotBeReadHasNoDevice(t *testing.T) {
	broken := errors.New("a disk that cannot be read")

	for name, spoil := range map[string]func(n *node, s *Set){
		"open": func(_ *node, s *Set) {
			s.OpenDisk = func(string, bool) (blk.Disk, error) { return nil, broken }
		},
		"read": func(n *node, _ *Set) {
			n.disks[copyID].Hook = func(string, int64, int) error { return broken }
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := opened(t)
			s := n.process(0)
			copyVolume(t, s, copyID, id, CopyOptions{})
			n.store.(*memoryStore).states[copyID] = stored{1,
				s.newState(copyID, size, Request{Source: id})}
			on := attached{s.Backend, map[string]bool{}}
			s.Backend = on
			spoil(n, s)
			if _, err := s.Copy(t.Context(), copyID, id, CopyOptions{}); !errors.Is(err, broken) {
				t.Error(err)
			}
			if on.volumes[copyID] || n.disks[copyID] == nil {
				t.Errorf("attached: %v, disk %v", on.volumes[copyID], n.disks[copyID] != nil)
			}
		})
	}
}

// The disk's owner may kill the process at any step of opening or closing a volume and keep an
// image of the disk. The image is refused once the volume has been opened again.
func TestImagesOfAStepThatWasCutShort(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(t *testing.T, n *node)
		run     func(ctx context.Context, s *Set) error
	}{
		"open": {closeVolume, openAgain},
		"close": {func(*testing.T, *node) {}, func(ctx context.Context, s *Set) error {
			_, err := s.Close(ctx, id, nil)
			return err
		}},
		"open twice": {closeVolume, func(ctx context.Context, s *Set) error {
			_, first := s.Open(ctx, id, OpenOptions{})
			_, err := s.Open(ctx, id, OpenOptions{})
			return errors.Join(first, err)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			for kill := 1; ; kill++ {
				n := opened(t)
				c.prepare(t, n)
				err := c.run(t.Context(), n.process(kill))
				killed := n.steps >= kill
				if err != nil && !errors.Is(err, errDead) {
					t.Fatal(err)
				}

				when := last(n.trace)
				kept := n.disks[id].Clone()
				n.process(0)
				n.reboot()
				if _, err := n.process(0).Open(t.Context(), id, OpenOptions{}); err != nil {
					t.Fatalf("step %d after %v: %v", kill, when, err)
				}

				// Data that a pod writes now would be lost if the kept image were accepted.
				n.reboot()
				n.disks[id].Become(kept)
				if _, err := n.process(0).Open(t.Context(), id, OpenOptions{}); !errors.As(err,
					new(*crypt.RefusedError)) {
					t.Errorf("step %d after %v: the image of that step: %v", kill, when, err)
				}
				if !killed {
					return
				}
			}
		})
	}
}
