package volume

import (
	"context"
	"errors"
	"fmt"

	"github.com/kubeveil/kubeveil/csi/backend"
	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/internal/blk"
	"github.com/kubeveil/kubeveil/csi/keyring"
)

// Closed is how a volume was closed.
type Closed struct {
	// Sealed reports whether the disk now carries an epoch of its own, so that images from while
	// the volume was open are refused.
	Sealed bool
	// Why it is not, when it is not.
	Why error
}

// Close removes the mapping of the volume from this node and releases the volume. One whose mapping
// is open is ErrInUse, and unchanged. It may be called again. It is sealed by the key that Open
// kept, or by keys (nil is the Set's); with neither the volume is closed all the same, and not
// sealed.
func (s *Set) Close(ctx context.Context, volume string, keys keyring.Provider) (Closed, error) {
	o, err := s.begin(ctx, volume, keys)
	if err != nil {
		return Closed{}, err
	}
	defer o.unlock()
	if err := o.unmap(ctx); err != nil {
		return Closed{}, err
	}
	var c Closed
	if o.Phase == Ready && o.Writer == o.Node {
		if c, err = o.giveUp(ctx); err != nil {
			return c, err
		}
	}
	o.drop()
	return c, o.Backend.Detach(ctx, volume)
}

// unmap removes the mappings of the volume. The present one must not be open; former ones are
// fenced, and go when they can.
func (o *op) unmap(ctx context.Context) error {
	present, former, err := o.mappings(ctx, o.State)
	if err != nil {
		return err
	}
	if present != "" {
		if err := o.Engine.Remove(ctx, present, false); errors.Is(err, crypt.ErrInUse) {
			return fmt.Errorf("volume %s: %w: %w", o.Volume, ErrInUse, err)
		} else if err != nil {
			return err
		}
	}
	for _, name := range former {
		if err := o.discard(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// giveUp seals the disk and lets go of the volume; of the volume alone when there is no key, or the
// disk is not what it was.
func (o *op) giveUp(ctx context.Context) (Closed, error) {
	why := o.seal(ctx)
	if why == nil {
		return Closed{Sealed: true}, nil
	}
	if o.Writer == "" || ctx.Err() != nil || errors.Is(why, ErrConflict) {
		return Closed{}, why
	}
	// What the state allows the disk to say (PendingEpoch) stays as it is.
	next := o.State
	next.Writer = ""
	if err := o.swap(ctx, next); err != nil {
		return Closed{}, err
	}
	o.happened(Unsealed)
	o.log.Warn("volume closed without sealing it: an image of the disk from while it was open "+
		"will be accepted", "why", why)
	return Closed{Why: why}, nil
}

func (o *op) seal(ctx context.Context) error {
	dev, err := o.Backend.Attach(ctx, o.Volume)
	if err != nil {
		return err
	}
	keys, done, err := o.sealingKeys(ctx)
	if err != nil {
		return err
	}
	defer done()
	_, err = o.advance(ctx, dev, keys, "")
	return err
}

// Expand makes the volume at least size bytes large, also while it is open. Making it smaller is no
// error and does nothing.
func (s *Set) Expand(ctx context.Context, volume string, size int64,
	opts OpenOptions) (State, error) {
	o, err := s.begin(ctx, volume, opts.Keys)
	if err != nil {
		return State{}, err
	}
	defer o.unlock()
	if err := errors.Join(o.claim(""), o.usable("expand")); err != nil {
		return o.State, err
	}
	if o.Phase != Ready {
		return o.State, fmt.Errorf("expand volume %s: it is in phase %s: open it first", volume,
			o.Phase)
	}
	payload := max(crypt.PayloadSize(size), o.PendingPayload)
	if payload <= o.Payload {
		return o.State, nil
	}

	// The key first, then the room: without either nothing changes.
	keys, err := o.deriveKeys(ctx)
	if err != nil {
		return o.State, err
	}
	defer keys.Wipe()
	dev, err := o.Backend.Attach(ctx, volume)
	if err != nil {
		return o.State, err
	}
	if err := o.Backend.Expand(ctx, volume, crypt.DeviceSize(payload)); err != nil {
		return o.State, err
	}

	next := o.State
	next.PendingPayload = payload
	// Also when it does already, see step.
	if err := o.swap(ctx, next); err != nil {
		return o.State, err
	}

	err = o.expand(ctx, dev, keys, opts)
	return o.State, err
}

// expand writes the pending size to the record, then to the mapping, then to the state: a state
// that is behind lets Open and Expand go on.
func (o *op) expand(ctx context.Context, dev backend.Device, keys *crypt.Keys,
	opts OpenOptions) error {
	var record crypt.Record
	err := o.verified(ctx, dev, keys, true,
		func(disk blk.Disk, metadata *crypt.Metadata, now crypt.Record) error {
			record = now.Next(now.Epoch, o.PendingPayload)
			return metadata.Seal(disk, keys, record)
		})
	if err != nil {
		return err
	}

	if record.Epoch == o.Epoch && o.Writer == o.Node {
		t := crypt.NewTable(record, dev.Number, opts.Class, opts.Discard)
		if err := o.Engine.Resize(ctx, t, keys.Volume); err != nil &&
			!errors.Is(err, crypt.ErrNoMapping) {
			// The engine has tried that, once.
			return errors.Join(err, o.letGo(ctx, func() error {
				return o.Engine.Suspend(context.WithoutCancel(ctx), t.Name, false)
			}))
		}
	}

	next := o.State
	next.Payload, next.PendingPayload = record.Payload, 0
	if err := o.swap(ctx, next); err != nil {
		return err
	}
	if o.Writer == o.Node {
		o.keep(keys, opts)
	}

	o.log.Info("volume expanded", "bytes", o.Payload)
	return nil
}

// Removed is how a volume was deleted.
type Removed struct {
	// Shredded reports whether nothing of keyslot and record is on the disk. Without it, too, the
	// disk opens no more: its key is gone.
	Shredded bool
	// Why they were not, when they were not.
	Why error
}

// Delete destroys the wrapped key, then what of it is on the disk, then the backing. It may be
// called again. A volume that is in use, here or on another node, is refused. What remains is a
// state in phase DELETED, until Forget. A backing that says it is another volume, and one that
// would be destroyed and is not known to be the volume's, is left alone, and that is an error until
// somebody has moved or removed it.
func (s *Set) Delete(ctx context.Context, volume string) (Removed, error) {
	o, err := s.begin(ctx, volume, nil)
	if errors.Is(err, ErrNotFound) {
		return Removed{}, nil
	}

	if err != nil {
		return Removed{}, err
	}
	defer o.unlock()
	if o.Phase != Deleted {
		if err := o.destroyKey(ctx); err != nil {
			return Removed{}, err
		}
	}

	o.drop()
	why := o.shred(ctx)
	r := Removed{Shredded: why == nil, Why: why}
	unknown := errors.As(why, new(*crypt.RefusedError))
	if unknown && (o.Backend.Destroys() || errors.Is(why, crypt.OtherVolume)) {
		return r, errors.Join(fmt.Errorf("volume %s is deleted, its key destroyed, and its "+
			"backing left, because it is not known to be this volume's: "+
			"move it to where it belongs, or remove it, then delete again: %w", volume, why),
			o.Backend.Detach(ctx, volume))
	}

	if why != nil && !unknown && !errors.Is(why, backend.ErrMissing) {
		return r, why
	}
	return r, errors.Join(o.Backend.Detach(ctx, volume), o.Backend.Delete(ctx, volume))
}

// destroyKey takes the volume to DELETED, when nobody uses it.
func (o *op) destroyKey(ctx context.Context) error {
	if err := o.claim(""); err != nil {
		return err
	}
	if err := o.unmap(ctx); err != nil {
		return err
	}
	if err := o.swap(ctx, o.State.Destroyed()); err != nil {
		return err
	}
	o.log.Info("volume deleted: its key is destroyed")
	return nil
}

// shred overwrites what of the volume's keys is on its disk. On an error the disk is not known to
// be the volume's: the key by which its record could be verified is destroyed, so what the record
// says, and which device was chosen, is all there is to go by.
func (o *op) shred(ctx context.Context) error {
	dev, err := o.Backend.Attach(ctx, o.Volume)
	if err != nil {
		return err
	}
	disk, err := o.disk(dev, false)
	if err != nil {
		return err
	}
	defer disk.Close()
	err = crypt.Shred(disk, o.Binding())
	chosen := o.Device == dev.ID
	switch {
	case errors.Is(err, crypt.OtherVolume) && o.isCopy() && o.Epoch == 0 && (o.Device == "" ||
		chosen):
		// A copy that never was READY says that it is its source. One that was, and says so, holds
		// the source itself.
		return crypt.Shred(disk, o.origin().Binding)
	case errors.Is(err, crypt.Blank) && (o.Device == "" || chosen):
		return nil // Shredded before, or never written.
	case errors.Is(err, crypt.Foreign) && chosen && o.Epoch == 0:
		// Blank when it was chosen, and never READY: formatting was cut short, and no pod has had
		// it.
		return nil
	}
	return err
}

// Forget removes the state of a deleted volume. Call it when nobody can ask for the volume any
// more.
func (s *Set) Forget(ctx context.Context, volume string) error {
	o, err := s.begin(ctx, volume, nil)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	defer o.unlock()
	if o.Phase != Deleted {
		return fmt.Errorf("forget volume %s: it is in phase %s, not deleted", volume, o.Phase)
	}
	return o.Store.Remove(ctx, volume, o.revision)
}
