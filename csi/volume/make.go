package volume

import (
	"context"
	"errors"
	"fmt"

	"github.com/kubeveil/kubeveil/csi/backend"
	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/internal/blk"
)

// Make has mkfs make a file system on a volume whose Content is Unmade, and formats the volume
// first when it is new; one that is Made is left. made is whether mkfs was called and returned no
// error. The device that it is given goes with the call: Open gives the one to be used, with an
// epoch that the volume never had while it was Unmade. So a state from a backup that says Unmade
// has no file system made on what was used since: the disk is newer (crypt.NewerThanState). Other
// processes are kept off the volume meanwhile. Make may be called again after it failed or died.
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
	if o.Content == Made {
		return false, nil
	}
	if err := o.make(ctx, opts, mkfs); err != nil {
		return false, o.release(ctx, err)
	}
	return true, nil
}

func (o *op) make(ctx context.Context, opts OpenOptions, mkfs func(device string) error) error {
	dev, err := o.ready(ctx, o.Node)
	if err != nil {
		return err
	}
	next := o.State
	next.Writer = o.Node
	// Also when the state says so already, see step.
	if err := o.swap(ctx, next); err != nil {
		return err
	}
	m, err := o.unmade(ctx, dev, opts)
	if err != nil {
		return err
	}
	// The device goes in any case, and before the state says Made: nothing is left that could be
	// used by this epoch.
	if err := errors.Join(mkfs(m.Path), o.remove(ctx, m.Name)); err != nil {
		return err
	}
	next = o.State
	next.Content = Made
	return o.swap(ctx, next)
}

// unmade returns a mapping by the epoch that the disk has: the one that a process left which died
// in Make, or a new one. One that takes the place of another gets the next epoch, and so another
// name: who holds the other open keeps its name taken.
func (o *op) unmade(ctx context.Context, dev backend.Device,
	opts OpenOptions) (crypt.Mapping, error) {
	m, stale, err := o.adopt(ctx, dev, opts)
	if err != nil {
		return m, err
	}

	if m.Name != "" {
		if m.Open > 0 {
			// A mkfs that outlived its process, or somebody of whom the state does not know.
			return m, fmt.Errorf("make a file system on volume %s: mapping %s: %w", o.Volume,
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
		if o.PendingEpoch != 0 || stale != "" {
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

// remove removes a mapping; one that somebody has open just now, as udev may, is fenced and goes
// with its last close.
func (o *op) remove(ctx context.Context, name string) error {
	err := o.Engine.Remove(ctx, name, false)
	if errors.Is(err, crypt.ErrInUse) {
		err = o.discard(ctx, name)
	}
	return err
}
