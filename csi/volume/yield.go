package volume

import (
	"context"
	"errors"
	"fmt"

	"github.com/kubeveil/kubeveil/csi/crypt"
)

// Yield fences what this node has mapped of a volume and may write to no more: that of the present
// epoch when another node has the volume, because that one took it over, and two that write destroy
// a file system; those of former epochs also when nobody has it, as when the other has closed it
// again. Who uses it here gets errors from then on; the mapping goes with its last close. All else
// is left as it is, and so is a mapping that is ahead of the state (crypt.NewerThanState). It may
// be called again.
func (s *Set) Yield(ctx context.Context, volume string) error {
	o, err := s.begin(ctx, volume, nil)
	if err != nil {
		return err
	}
	defer o.unlock()
	present, names, err := o.mappings(ctx, o.State)
	if err != nil {
		return err
	}
	if present != "" && o.Busy(o.Node) != nil {
		names = append(names, present)
	}

	for _, name := range names {
		m, err := o.Engine.Lookup(ctx, name)
		if errors.Is(err, crypt.ErrNoMapping) || err == nil && m.Dead() {
			continue // It goes with its last close.
		}
		if err == nil {
			err = o.discard(ctx, name)
		}
		if err != nil {
			return err
		}
		o.happened(Fenced)
		o.log.Warn("mapping fenced: another node has taken its volume over; what was written here "+
			"since is lost", "mapping", name, "node", o.Writer)
	}

	if o.Writer != o.Node {
		o.drop()
	}
	return nil
}

// YieldLater fences the mapping name of the volume where a record on its disk claims a later epoch
// than the mapping has: another node has opened the volume since, and has the same disk. It asks
// the disk alone, and works while the store is away. Whoever forges such a record could as well
// destroy the volume. A volume that is worked on is ErrInProgress: its epoch may be ours.
func (s *Set) YieldLater(ctx context.Context, volume, name string) error {
	unlock, err := s.lock(volume)
	if err != nil {
		return err
	}
	defer unlock()

	uuid, epoch, ok := crypt.VolumeOf(name)
	m, err := s.Engine.Lookup(ctx, name)
	below, mapped := m.Below()
	if errors.Is(err, crypt.ErrNoMapping) || err == nil && (!ok || !mapped) {
		return nil // It is closed, fenced, or not ours.
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
	if err := s.Engine.Fence(ctx, name); err != nil && !errors.Is(err, crypt.ErrNoMapping) {
		return err
	}
	s.happened(Fenced)
	s.Log.Warn("mapping fenced: its disk says that the volume was opened since, by another node; "+
		"what was written here since is lost", "volume", volume, "mapping", name, "epoch", epoch,
		"found", later)
	return s.Engine.Remove(ctx, name, true)
}
