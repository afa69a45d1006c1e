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

// OpenOptions configure Open. The zero value is valid.
type OpenOptions struct {
	// Keys is the key provider of this request. Nil means the provider of the Set.
	Keys keyring.Provider
	// Tuning is the tuning of the mapping. Discard passes discards of free blocks to the disk.
	Tuning  dmcrypt.Tuning
	Discard bool
	// TakeOver names the lost node from which the volume may be taken over. It may be empty.
	TakeOver string
	// KeepSealing keeps the sealing key in locked memory until the volume is closed, so that Close
	// needs no provider of the volume's key. The sealing key decrypts no data.
	KeepSealing bool
}

// Opened is a volume that can be used.
type Opened struct {
	// Mapping is the device-mapper device with the plain text.
	Mapping dmcrypt.Mapping
	// State is the present state of the volume.
	State State
	// Adopted reports whether the mapping existed before the call.
	Adopted bool
}

// Open opens the volume on this node and returns its mapping. It first formats a new volume. It may
// be called again at any time and then returns the same mapping. Also after an error, the state
// allows the epoch on the disk.
func (s *Set) Open(ctx context.Context, volume string, opts OpenOptions) (Opened, error) {
	o, err := s.begin(ctx, volume, opts.Keys)
	if err != nil {
		return Opened{}, err
	}
	defer o.unlock()
	if err := o.claim(opts.TakeOver); err != nil {
		return Opened{}, err
	}
	if err := o.usable("open"); err != nil {
		return Opened{}, err
	}
	dev, err := o.ensureFormatted(ctx, o.Node)
	if err != nil {
		return Opened{}, o.release(ctx, err)
	}

	m, stale, err := o.adopt(ctx, dev, opts)
	if err != nil {
		return Opened{}, o.release(ctx, err)
	}

	if m.Name != "" {
		o.keepAgain(ctx, opts)
		return Opened{m, o.state, true}, nil
	}

	if m, err = o.open(ctx, dev, opts, stale); err != nil {
		return Opened{}, o.release(ctx, err)
	}
	return Opened{m, o.state, false}, nil
}

// release detaches the backing's device after err, unless a mapping may use the device. No later
// Close would detach it, because the volume was not opened. It returns err, joined with the error
// of Detach.
func (o *op) release(ctx context.Context, err error) error {
	if names, unknown := o.Engine.List(ctx, dmcrypt.NamePrefix(o.state.UUID)); unknown != nil ||
		len(names) > 0 {
		return err
	}
	if left := o.Backend.Detach(context.WithoutCancel(ctx), o.state.Volume); left != nil {
		err = errors.Join(err, left)
	}
	return err
}

// ensureFormatted attaches the volume's device. If the volume is not READY yet, it formats the
// volume, and writer becomes the state's writer.
func (o *op) ensureFormatted(ctx context.Context, writer string) (backend.Device, error) {
	if o.state.Phase == New {
		err := o.Backend.Provision(ctx, o.state.Volume, crypt.DeviceSize(o.state.Payload))
		if err != nil {
			return backend.Device{}, err
		}
	}
	dev, err := o.Backend.Attach(ctx, o.state.Volume)
	if err != nil || o.state.Phase == Ready {
		return dev, err
	}
	return dev, o.format(ctx, dev, writer)
}

// format formats the disk and moves the volume from NEW or FORMATTING to READY, with that writer.
func (o *op) format(ctx context.Context, dev backend.Device, writer string) error {
	disk, err := o.disk(dev, false)
	if err != nil {
		return err
	}
	defer disk.Close()
	if o.state.Phase == New {
		if err := o.beginFormat(ctx, disk, dev); err != nil {
			return err
		}
	}

	if o.state.Device != dev.ID {
		return fmt.Errorf("format volume %s: %w", o.state.Volume, &crypt.RefusedError{
			Kind: crypt.OtherVolume, What: "device",
			Expected: o.state.Device + ", where formatting began", Found: dev.ID})
	}

	data, err := o.dataKey(ctx)
	if err != nil {
		return err
	}
	defer data.Wipe()
	if err := o.write(ctx, disk, data); err != nil {
		return err
	}

	next := o.state
	next.Phase, next.Epoch, next.Writer = Ready, 1, writer
	if err := o.updateState(ctx, next); err != nil {
		return err
	}

	o.log.Info("volume formatted", "device", dev.ID, "bytes", o.state.Payload)
	return nil
}

// write writes the metadata of a volume in FORMATTING.
func (o *op) write(ctx context.Context, disk blk.Disk, data *keyring.Secret) error {
	done, err := o.takeReadSlot(ctx)
	if err != nil {
		return err
	}
	defer done()
	if o.state.isCopy() {
		return crypt.FormatCopy(disk, data, o.state.Identity(), o.state.Payload, o.state.origin())
	}
	return crypt.Format(disk, data, o.state.Identity(), o.state.Payload)
}

// beginFormat checks that the disk is blank, makes a data key, checks that the wrapped key unwraps,
// and moves the volume from NEW to FORMATTING. Scanning a large disk may take longer than ctx
// allows. So the later steps ignore the end of ctx, and the next call continues.
func (o *op) beginFormat(ctx context.Context, disk blk.Disk, dev backend.Device) error {
	if err := o.blank(ctx, disk); err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	data, err := crypt.NewDataKey()
	if err != nil {
		return err
	}
	defer data.Wipe()
	next := o.state
	next.Phase, next.Writer, next.Device = Formatting, o.Node, dev.ID
	if next.UUID, err = crypt.NewUUID(); err != nil {
		return err
	}
	if next.Key, err = keyring.WrapChecked(ctx, o.provider, o.state.Binding(), data); err != nil {
		return err
	}
	return o.updateState(ctx, next)
}

// blank returns an error if the disk holds any data.
func (o *op) blank(ctx context.Context, disk blk.Disk) error {
	done, err := o.takeReadSlot(ctx)
	if err != nil {
		return err
	}
	defer done()
	if err := crypt.CheckBlank(disk, crypt.DeviceSize(o.state.Payload)); err != nil {
		return fmt.Errorf("format volume %s: %w", o.state.Volume, err)
	}
	return nil
}

// adopt returns the existing mapping m if it is equal to the mapping that Open would make now.
// Otherwise m is empty. stale names a different mapping of the present epoch. It may be mounted, so
// it stays until its replacement can be made. adopt fences and removes mappings of former epochs.
func (o *op) adopt(ctx context.Context, dev backend.Device,
	opts OpenOptions) (m dmcrypt.Mapping, stale string, err error) {
	present, former, err := o.mappings(ctx, o.state)
	if err != nil {
		return m, "", err
	}

	for _, name := range former {
		if err := o.fenceAndRemove(ctx, name); err != nil {
			return m, "", err
		}
	}

	if present == "" {
		return m, "", nil
	}

	why := fmt.Sprintf("the state gives it to node %q, pending epoch %d", o.state.Writer,
		o.state.PendingEpoch)
	if o.state.Writer == o.Node && o.state.PendingEpoch == 0 {
		want := dmcrypt.Expected(o.state.UUID, o.state.Epoch, o.state.Payload, dev.Number,
			opts.Tuning, opts.Discard)
		if m, why = o.inspect(ctx, want); why != "" && o.state.PendingPayload != 0 {
			// An expansion that was cut short may have resized the mapping.
			want.Payload = o.state.PendingPayload
			m, why = o.inspect(ctx, want)
		}
	}

	if why == "" {
		return m, "", nil
	}

	o.log.Warn("a mapping contradicts the state of its volume and is replaced", "mapping", present,
		"why", why)
	return dmcrypt.Mapping{}, present, nil
}

// inspect returns the mapping of table want, and the reason why it cannot be used or an empty
// string. First it resumes a mapping that a copy left suspended, or that an expansion left with an
// inactive table. The live table stays.
func (o *op) inspect(ctx context.Context, want dmcrypt.MappingSpec) (dmcrypt.Mapping, string) {
	m, err := o.Engine.Lookup(ctx, want.Name)
	if err == nil && (m.Suspended || m.Inactive) {
		if err = o.Engine.Suspend(ctx, want.Name, false); err == nil {
			m, err = o.Engine.Lookup(ctx, want.Name)
		}
	}
	if err != nil {
		return m, err.Error()
	}
	if why := want.Differs(m); why != "" {
		return m, why
	}
	if err := o.Engine.Probe(ctx, want.Name); err != nil {
		return m, err.Error()
	}
	return m, ""
}

// fenceAndRemove fences a mapping, which cuts it off from its disk, and removes it. If the mapping
// is open, the kernel removes it on its last close.
func (o *op) fenceAndRemove(ctx context.Context, name string) error {
	if err := o.Engine.Fence(ctx, name); err != nil && !errors.Is(err, dmcrypt.ErrNoMapping) {
		return err
	}
	return o.Engine.Remove(ctx, name, true)
}

// open verifies the disk, advances the epoch and makes the mapping. See create for stale.
func (o *op) open(ctx context.Context, dev backend.Device, opts OpenOptions,
	stale string) (dmcrypt.Mapping, error) {
	keys, err := o.deriveKeys(ctx)
	if err != nil {
		return dmcrypt.Mapping{}, err
	}
	defer keys.Wipe()
	m, err := o.create(ctx, dev, opts, stale, keys,
		func() (crypt.Record, error) { return o.advance(ctx, dev, keys, o.Node) })
	if err != nil {
		return dmcrypt.Mapping{}, err
	}
	o.keep(keys, opts)
	o.log.Info("volume opened", "device", dev.ID, "epoch", o.state.Epoch, "mapping", m.Name)
	return m, nil
}

// create makes the mapping of the record that verified returns. It first removes the mapping stale,
// unless stale is empty.
func (o *op) create(ctx context.Context, dev backend.Device, opts OpenOptions, stale string,
	keys *crypt.Keys, verified func() (crypt.Record, error)) (dmcrypt.Mapping, error) {
	// Keep the disk open until the mapping holds the device, so that its device number is not
	// reused.
	held, err := o.disk(dev, true)
	if err != nil {
		return dmcrypt.Mapping{}, err
	}
	defer held.Close()
	if stale != "" {
		// Remove stale only after the key and the disk are verified. Until then the mounted mapping
		// may be the only way to the data.
		if err := o.verified(ctx, dev, keys, true,
			func(blk.Disk, *crypt.Metadata, crypt.Record) error { return nil }); err != nil {
			return dmcrypt.Mapping{}, fmt.Errorf("mapping %s is wrong but kept: "+
				"no replacement can be opened: %w", stale, err)
		}
		if err := o.fenceAndRemove(ctx, stale); err != nil {
			return dmcrypt.Mapping{}, err
		}
	}

	record, err := verified()
	if err != nil {
		return dmcrypt.Mapping{}, err
	}
	m, err := o.Engine.Create(ctx, dmcrypt.NewMappingSpec(record, dev.Number, opts.Tuning,
		opts.Discard), keys.Volume)
	if err != nil {
		return dmcrypt.Mapping{}, err
	}
	if err := o.Engine.Probe(ctx, m.Name); err != nil {
		return dmcrypt.Mapping{}, errors.Join(err, o.fenceAndRemove(ctx, m.Name))
	}

	return m, nil
}

// advance moves the volume to an epoch that no image of its disk can have, with that writer. See
// step.
func (o *op) advance(ctx context.Context, dev backend.Device, keys *crypt.Keys,
	writer string) (crypt.Record, error) {
	if o.state.PendingEpoch != 0 {
		// A step was interrupted. The disk's owner may hold an image with the pending epoch, so
		// skip it.
		if _, err := o.step(ctx, dev, keys, o.Node); err != nil {
			return crypt.Record{}, err
		}
	}
	return o.step(ctx, dev, keys, writer)
}

// step verifies the disk, writes its record with the next epoch, and updates the state with that
// epoch and writer. The state has the new epoch as PendingEpoch before the disk has it. So if the
// process dies in between, the state allows both epochs.
func (o *op) step(ctx context.Context, dev backend.Device, keys *crypt.Keys,
	writer string) (crypt.Record, error) {
	var sealed crypt.Record
	err := o.verified(ctx, dev, keys, false,
		func(disk blk.Disk, metadata *crypt.Metadata, record crypt.Record) error {
			next := o.state
			next.PendingEpoch, next.Writer = o.state.Epoch+1, o.Node
			// Update the state even if it is already equal: another node may have taken the volume
			// over since it was read, and this node must not write to that disk.
			if err := o.updateState(ctx, next); err != nil {
				return err
			}
			// Do not continue an expansion that was interrupted before it reached the disk. The
			// caller requests it again.
			sealed = record.Next(o.state.PendingEpoch, record.Payload)
			if err := metadata.Seal(disk, keys, sealed); err != nil {
				return fmt.Errorf("volume %s: %w", o.state.Volume, err)
			}
			next.Epoch, next.PendingEpoch = sealed.Epoch, 0
			if next.Payload = sealed.Payload; next.PendingPayload <= next.Payload {
				next.PendingPayload = 0
			}
			next.Writer = writer
			return o.updateState(ctx, next)
		})
	return sealed, err
}
