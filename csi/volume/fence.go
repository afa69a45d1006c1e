package volume

import (
	"context"
	"errors"
	"fmt"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
)

// FenceByState fences this node's stale mappings of a volume. The mapping of the present epoch is
// stale if another node took the volume over: two writers destroy a file system. Mappings of former
// epochs are always stale, also once the other node has closed the volume.
//
// Users of a fenced mapping get I/O errors, and the kernel removes it on its last close. All other
// mappings stay, also one that is ahead of the state (crypt.NewerThanState). FenceByState may be
// called again.
func (s *Set) FenceByState(ctx context.Context, volume string) error {
	o, err := s.begin(ctx, volume, nil)
	if err != nil {
		return err
	}
	defer o.unlock()
	present, names, err := o.mappings(ctx, o.state)
	if err != nil {
		return err
	}
	if present != "" && o.state.Busy(o.Node) != nil {
		names = append(names, present)
	}

	for _, name := range names {
		m, err := o.Engine.Lookup(ctx, name)
		if errors.Is(err, dmcrypt.ErrNoMapping) || err == nil && m.Dead() {
			continue // The kernel removes it on its last close.
		}
		if err == nil {
			err = o.fenceAndRemove(ctx, name)
		}
		if err != nil {
			return err
		}
		o.happened(volume, Fenced)
		o.log.Warn("mapping fenced: another node has taken its volume over; what was written here "+
			"since is lost", "mapping", name, "node", o.state.Writer)
	}

	if o.state.Writer != o.Node {
		o.drop()
	}
	return nil
}

// FenceByDisk fences the mapping name of the volume if a record on its disk claims a later epoch
// than the mapping: then another node with the same disk has opened the volume. It reads only the
// disk, so it works while the store is away. A forged record gains nothing: its author could
// destroy the volume anyway. A volume with an operation under way is ErrInProgress, because the
// epoch may be its own.
func (s *Set) FenceByDisk(ctx context.Context, volume, name string) error {
	unlock, err := s.lock(volume)
	if err != nil {
		return err
	}
	defer unlock()

	uuid, epoch, ok := dmcrypt.VolumeOf(name)
	m, err := s.Engine.Lookup(ctx, name)
	below, mapped := m.Below()
	if errors.Is(err, dmcrypt.ErrNoMapping) || err == nil && (!ok || !mapped) {
		return nil // The mapping is closed, fenced, or not ours.
	}
	if err != nil {
		return err
	}
	disk, err := s.OpenBelow(below)
	if err != nil {
		return fmt.Errorf("disk below mapping %s: %w", name, err)
	}
	defer disk.Close()
	later, err := crypt.Later(disk, uuid, epoch)
	if err != nil {
		return fmt.Errorf("disk below mapping %s: %w", name, err)
	}
	if later == 0 {
		return nil
	}
	if err := s.Engine.Fence(ctx, name); err != nil && !errors.Is(err, dmcrypt.ErrNoMapping) {
		return err
	}
	s.happened(volume, Fenced)
	s.Log.Warn("mapping fenced: by its disk another node opened the volume since; "+
		"what was written here since is lost", "volume", volume, "mapping", name, "epoch", epoch,
		"found", later)
	return s.Engine.Remove(ctx, name, true)
}
