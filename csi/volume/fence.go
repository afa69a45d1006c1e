package volume

import (
	"context"
	"errors"
	"fmt"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
)

// FenceByState fences this node's stale mappings of a volume. The mapping of the present epoch is
// stale if another node took the volume over, because two writers would destroy the file system.
// Mappings of former epochs are always stale, even after the other node has closed the volume.
//
// Users of a fenced mapping get I/O errors, and the kernel removes the mapping on its last close.
// All other mappings stay. FenceByState returns crypt.NewerThanState, and fences nothing, if a
// mapping is ahead of the state. FenceByState may be called again.
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
		o.log.Warn("mapping fenced: another node has taken its volume over, and data written here "+
			"since the takeover is lost", "mapping", name, "node", o.state.Writer)
	}

	if o.state.Writer != o.Node {
		o.drop()
	}
	return nil
}

// FenceByDisk fences the mapping name of the volume if a record on its disk claims a later epoch
// than the mapping. Then another node with the same disk has opened the volume. FenceByDisk reads
// only the disk, so it works while the store is away. It does not verify the record: an attacker
// who forges one could destroy the volume anyway. It returns ErrInProgress during another operation
// on the volume, because that operation may have written the later epoch.
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
	s.Log.Warn("mapping fenced: its disk shows that another node has opened the volume, and data "+
		"written here since then is lost", "volume", volume, "mapping", name, "epoch", epoch,
		"found", later)
	return s.Engine.Remove(ctx, name, true)
}
