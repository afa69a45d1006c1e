package volume

import (
	"context"
	"errors"
	"fmt"

	"github.com/kubeveil/kubeveil/csi/backend"
	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/internal/blk"
)

// Make calls mkfs with the device of a volume whose Content is Unmade. It first formats a new
// volume. It does not change a volume that is Made. made reports whether mkfs was called and
// succeeded.
//
// Make removes the mapping that mkfs used before it returns. Open makes another mapping, with an
// epoch that the volume never had while it was Unmade. So with an Unmade state from a backup, Make
// never overwrites data that was written since: the disk is newer than the state
// (crypt.NewerThanState).
//
// Make locks the volume against other processes. It may be called again after it failed or died.
func (s *Set) Make(ctx context.Context, volume string, opts OpenOptions,
	mkfs func(device string) error) (made bool, err error) {
	o, err := s.begin(ctx, volume, opts.Keys)
	if err != nil {
		return false, err
	}
	defer o.unlock()
	if err := errors.Join(o.claim(opts.TakeOver), o.usable("open")); err != nil {
		return false, err
	}
	if o.state.Content == Made {
		return false, nil
	}
	if err := o.make(ctx, opts, mkfs); err != nil {
		return false, o.release(ctx, err)
	}
	return true, nil
}

func (o *op) make(ctx context.Context, opts OpenOptions, mkfs func(device string) error) error {
	dev, err := o.ensureFormatted(ctx, o.Node)
	if err != nil {
		return err
	}
	next := o.state
	next.Writer = o.Node
	// Update the state even if it is already equal: see step.
	if err := o.updateState(ctx, next); err != nil {
		return err
	}
	m, err := o.unmade(ctx, dev, opts)
	if err != nil {
		return err
	}
	// Always remove the mapping, and before the state becomes Made: no pod may use a mapping of
	// this epoch.
	if err := errors.Join(mkfs(m.Path), o.remove(ctx, m.Name)); err != nil {
		return err
	}
	next = o.state
	next.Content, next.Mode = Made, Filesystem
	return o.updateState(ctx, next)
}

// unmade returns a mapping for mkfs. It reuses the mapping of a process that died in Make, or makes
// a mapping with the disk's epoch. A mapping that replaces a stale one gets the next epoch and so
// another name, because the kernel keeps the old name until the old mapping is closed.
func (o *op) unmade(ctx context.Context, dev backend.Device,
	opts OpenOptions) (dmcrypt.Mapping, error) {
	m, stale, err := o.adopt(ctx, dev, opts)
	if err != nil {
		return m, err
	}

	if m.Name != "" {
		if m.Open > 0 {
			// A mkfs outlived its process, or another program opened the mapping.
			return m, fmt.Errorf("make a file system on volume %s: mapping %s: %w", o.state.Volume,
				m.Name, ErrInUse)
		}
		return m, nil
	}

	keys, err := o.deriveKeys(ctx)
	if err != nil {
		return m, err
	}
	defer keys.Wipe()
	return o.create(ctx, dev, opts, stale, keys, func() (r crypt.Record, err error) {
		if o.state.PendingEpoch != 0 || stale != "" {
			return o.advance(ctx, dev, keys, o.Node)
		}
		err = o.verified(ctx, dev, keys, false,
			func(_ blk.Disk, _ *crypt.Metadata, now crypt.Record) error {
				r = now
				return nil
			})
		return r, err
	})
}

// remove removes a mapping. If the mapping is open, for example by udev, remove fences it, and the
// kernel removes it on its last close.
func (o *op) remove(ctx context.Context, name string) error {
	err := o.Engine.Remove(ctx, name, false)
	if errors.Is(err, dmcrypt.ErrInUse) {
		err = o.fenceAndRemove(ctx, name)
	}
	return err
}
