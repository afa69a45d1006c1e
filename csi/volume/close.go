package volume

import (
	"context"
	"errors"
	"fmt"

	"github.com/kubeveil/kubeveil/csi/backend"
	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/internal/blk"
	"github.com/kubeveil/kubeveil/csi/keyring"
)

// Closed is the result of closing a volume.
type Closed struct {
	// Sealed reports whether the disk now has a new epoch. Then an image of the disk from while the
	// volume was open will be refused.
	Sealed bool
	// Why is the reason why the disk was not sealed. It is nil if Sealed is true.
	Why error
}

// Close removes the volume's mapping from this node, seals the record and releases the volume. It
// may be called again. If the mapping is in use, Close changes nothing and returns ErrInUse. It
// seals with the key that Open kept, or else with the key that keys unwraps. Nil keys mean the
// provider of the Set. If that provider does not answer, Close removes the mapping, does not
// release the volume, and returns keyring.ErrUnavailable; another Close continues. With neither key
// nor provider, Close closes the volume unsealed.
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
	if o.state.Phase == Ready && o.state.Writer == o.Node {
		if c, err = o.giveUp(ctx); err != nil {
			return c, err
		}
	}
	o.drop()
	return c, o.Backend.Detach(ctx, volume)
}

// unmap removes the mappings of the volume. It returns ErrInUse if the current mapping is open. It
// fences mappings of former epochs; the kernel removes each on its last close.
func (o *op) unmap(ctx context.Context) error {
	present, former, err := o.mappings(ctx, o.state)
	if err != nil {
		return err
	}
	if present != "" {
		if err := o.Engine.Remove(ctx, present, false); errors.Is(err, dmcrypt.ErrInUse) {
			return fmt.Errorf("volume %s: %w: %w", o.state.Volume, ErrInUse, err)
		} else if err != nil {
			return err
		}
	}
	for _, name := range former {
		if err := o.fenceAndRemove(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// giveUp seals the disk and clears the state's writer. Without a key, or if the disk is refused, it
// only clears the writer. If the provider does not answer, it returns an error and keeps the
// writer. Otherwise an operator of the network could force volumes to be closed unsealed.
func (o *op) giveUp(ctx context.Context) (Closed, error) {
	why := o.seal(ctx)
	if why == nil {
		return Closed{Sealed: true}, nil
	}
	if o.state.Writer == "" || ctx.Err() != nil || errors.Is(why, ErrConflict) {
		return Closed{}, why
	}
	if o.provider != nil && errors.Is(why, keyring.ErrUnavailable) {
		return Closed{}, fmt.Errorf("close volume %s: its mapping is removed, but its disk "+
			"must be sealed before the volume is released: %w", o.state.Volume, why)
	}
	// Keep PendingEpoch: the disk may show that epoch.
	next := o.state
	next.Writer = ""
	if err := o.updateState(ctx, next); err != nil {
		return Closed{}, err
	}
	o.happened(o.state.Volume, Unsealed)
	o.log.Warn("volume closed without sealing it: until it is opened again, an older image of its "+
		"disk from the time when it was open is accepted", "why", why)
	return Closed{Why: why}, nil
}

func (o *op) seal(ctx context.Context) error {
	dev, err := o.Backend.Attach(ctx, o.state.Volume)
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

// Expand grows the volume to at least size bytes. The volume may be open. If it is already large
// enough, Expand changes nothing and returns nil.
func (s *Set) Expand(ctx context.Context, volume string, size int64,
	opts OpenOptions) (State, error) {
	o, err := s.begin(ctx, volume, opts.Keys)
	if err != nil {
		return State{}, err
	}
	defer o.unlock()
	if err := errors.Join(o.claim(""), o.usable("expand")); err != nil {
		return o.state, err
	}
	if o.state.Phase != Ready {
		return o.state, fmt.Errorf("expand volume %s: it is in phase %s: open it first", volume,
			o.state.Phase)
	}
	payload := max(crypt.PayloadSize(size), o.state.PendingPayload)
	if payload <= o.state.Payload {
		return o.state, nil
	}

	// Get the key and the space before the state changes: an Expand without either changes nothing.
	keys, err := o.deriveKeys(ctx)
	if err != nil {
		return o.state, err
	}
	defer keys.Wipe()
	dev, err := o.Backend.Attach(ctx, volume)
	if err != nil {
		return o.state, err
	}
	if err := o.Backend.Expand(ctx, volume, crypt.DeviceSize(payload)); err != nil {
		return o.state, err
	}

	next := o.state
	next.PendingPayload = payload
	// Update the state even if it is already equal: see step.
	if err := o.updateState(ctx, next); err != nil {
		return o.state, err
	}

	err = o.expand(ctx, dev, keys, opts)
	return o.state, err
}

// expand writes the pending size to the record, then to the mapping, then to the state. After an
// interruption the state has the old size, and Open or Expand continues.
func (o *op) expand(ctx context.Context, dev backend.Device, keys *crypt.Keys,
	opts OpenOptions) error {
	var record crypt.Record
	err := o.verified(ctx, dev, keys, true,
		func(disk blk.Disk, metadata *crypt.Metadata, now crypt.Record) error {
			record = now.Next(now.Epoch, o.state.PendingPayload)
			return metadata.Seal(disk, keys, record)
		})
	if err != nil {
		return err
	}

	if record.Epoch == o.state.Epoch && o.state.Writer == o.Node {
		t := dmcrypt.NewMappingSpec(record, dev.Number, opts.Tuning, opts.Discard)
		if err := o.Engine.Resize(ctx, t, keys.Volume); err != nil &&
			!errors.Is(err, dmcrypt.ErrNoMapping) {
			// The engine has already tried to resume the mapping once.
			return errors.Join(err, o.resumeWithRetry(ctx, func() error {
				return o.Engine.Suspend(context.WithoutCancel(ctx), t.Name, false)
			}))
		}
	}

	next := o.state
	next.Payload, next.PendingPayload = record.Payload, 0
	if err := o.updateState(ctx, next); err != nil {
		return err
	}
	if o.state.Writer == o.Node {
		o.keep(keys, opts)
	}

	o.log.Info("volume expanded", "bytes", o.state.Payload)
	return nil
}

// Removed is the result of deleting a volume.
type Removed struct {
	// Shredded reports whether keyslot and record on the disk were overwritten. Even a disk that
	// was not shredded cannot be opened, because its wrapped key is destroyed.
	Shredded bool
	// Why is the reason why they were not overwritten. It is nil if Shredded is true.
	Why error
}

// Delete destroys the wrapped key, then keyslot and record on the disk, then the backing. It may be
// called again. It refuses a volume that is in use on any node. The state remains in phase DELETED
// until Forget.
//
// Delete never changes a backing that belongs to another volume. Nor does it destroy a backing that
// it cannot attribute to this volume. It then returns an error until an administrator moves or
// removes that backing.
func (s *Set) Delete(ctx context.Context, volume string) (Removed, error) {
	o, err := s.begin(ctx, volume, nil)
	if errors.Is(err, ErrNotFound) {
		return Removed{}, nil
	}

	if err != nil {
		return Removed{}, err
	}
	defer o.unlock()
	if o.state.Phase != Deleted {
		if err := o.destroyKey(ctx); err != nil {
			return Removed{}, err
		}
	}

	o.drop()
	why := o.shred(ctx)
	r := Removed{Shredded: why == nil, Why: why}
	unknown := errors.As(why, new(*crypt.RefusedError))
	if unknown && (o.Backend.Destroys() || errors.Is(why, crypt.OtherVolume)) {
		return r, errors.Join(fmt.Errorf("volume %s is deleted; its backing may belong to another "+
			"volume: move it to where it belongs, or remove it, then delete again: %w",
			volume, why),
			o.Backend.Detach(ctx, volume))
	}

	if why != nil && !unknown && !errors.Is(why, backend.ErrMissing) {
		return r, why
	}
	return r, errors.Join(o.Backend.Detach(ctx, volume), o.Backend.Delete(ctx, volume))
}

// destroyKey moves a volume that is not in use to phase DELETED, which removes the wrapped key.
func (o *op) destroyKey(ctx context.Context) error {
	if err := o.claim(""); err != nil {
		return err
	}
	if err := o.unmap(ctx); err != nil {
		return err
	}
	if err := o.updateState(ctx, o.state.Destroyed()); err != nil {
		return err
	}
	o.log.Info("volume deleted: its key is destroyed")
	return nil
}

// shred overwrites the volume's keyslot and records on its disk. On an error the disk may belong to
// another volume. The key that could verify the record is destroyed. So shred can only compare the
// volume that the record claims, and the device that was chosen for formatting.
func (o *op) shred(ctx context.Context) error {
	dev, err := o.Backend.Attach(ctx, o.state.Volume)
	if err != nil {
		return err
	}
	disk, err := o.disk(dev, false)
	if err != nil {
		return err
	}
	defer disk.Close()
	err = crypt.Shred(disk, o.state.Binding())
	chosen := o.state.Device == dev.ID
	switch {
	case errors.Is(err, crypt.OtherVolume) && o.state.isCopy() && o.state.Epoch == 0 &&
		(o.state.Device == "" || chosen):
		// The disk of a copy that was never READY has its source's record. If a READY copy had that
		// record, its disk would be the source itself.
		return crypt.Shred(disk, o.state.origin().Binding)
	case errors.Is(err, crypt.Blank) && (o.state.Device == "" || chosen):
		return nil // The disk was shredded before, or never written.
	case errors.Is(err, crypt.Foreign) && chosen && o.state.Epoch == 0:
		// The device was blank when it was chosen, and the volume was never READY: formatting was
		// cut short, and no pod has used the disk.
		return nil
	}
	return err
}

// Forget removes the state of a deleted volume. It does nothing without a state. Call it once no
// caller can request the volume again.
func (s *Set) Forget(ctx context.Context, volume string) error {
	o, err := s.begin(ctx, volume, nil)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	defer o.unlock()
	if o.state.Phase != Deleted {
		return fmt.Errorf("forget volume %s: it is in phase %s, not deleted", volume, o.state.Phase)
	}
	return o.Store.Remove(ctx, volume, o.revision)
}
