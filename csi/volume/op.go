package volume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/csi/backend"
	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/internal/blk"
	"github.com/kubeveil/kubeveil/csi/keyring"
)

// readSlotPatience is how long a volume may hold a read slot. After that time a disk that hangs
// still uses memory, but no longer delays other volumes.
const readSlotPatience = 30 * time.Second

// op is one operation on one volume. It holds the volume's lock.
type op struct {
	*Set
	state    State
	revision Revision
	// provider wraps and unwraps the volume's key.
	provider keyring.Provider
	log      *slog.Logger
	unlock   func()
}

// begin locks the volume and reads its state. Nil keys mean the provider of the Set. The caller
// calls unlock of the op.
func (s *Set) begin(ctx context.Context, volume string, keys keyring.Provider) (*op, error) {
	unlock, err := s.lock(volume)
	if err != nil {
		return nil, err
	}
	o, err := s.load(ctx, volume, keys)
	if err != nil {
		unlock()
		return nil, err
	}
	o.unlock = unlock
	return o, nil
}

// load reads the state of a locked volume.
func (s *Set) load(ctx context.Context, volume string, keys keyring.Provider) (*op, error) {
	o := &op{Set: s, provider: keys, log: s.Log.With("volume", volume)}
	if o.provider == nil {
		o.provider = s.Keys
	}
	var err error
	o.state, o.revision, err = s.get(ctx, volume)
	return o, err
}

// updateState writes next to the store. It returns ErrConflict if the stored state has changed
// since it was read.
func (o *op) updateState(ctx context.Context, next State) error {
	if err := next.Check(); err != nil {
		return err
	}
	r, err := o.Store.Update(ctx, next, o.revision)
	if err != nil {
		return fmt.Errorf("keep state of volume %s: %w", next.Volume, err)
	}
	o.state, o.revision = next, r
	return nil
}

// dataKey unwraps the key of the volume. The caller wipes it.
func (o *op) dataKey(ctx context.Context) (*keyring.Secret, error) {
	if o.provider == nil {
		return nil, fmt.Errorf("key of volume %s: %w: this request brings no key", o.state.Volume,
			keyring.ErrUnavailable)
	}
	data, err := o.provider.Unwrap(ctx, o.state.Binding(), o.state.Key)
	if err != nil {
		return nil, fmt.Errorf("key of volume %s: %w", o.state.Volume, err)
	}
	return data, nil
}

// deriveKeys unwraps the key of the volume and derives the keys of the mapping and the record. The
// caller wipes them.
func (o *op) deriveKeys(ctx context.Context) (*crypt.Keys, error) {
	data, err := o.dataKey(ctx)
	if err != nil {
		return nil, err
	}
	defer data.Wipe()
	return crypt.DeriveKeys(data, o.state.Binding())
}

// disk opens the attached device. shared allows a device that a mapping uses. disk returns an error
// if the path now leads to a device with another number, for example after unplugging, because the
// mapping's table uses the number.
func (o *op) disk(dev backend.Device, shared bool) (blk.Disk, error) {
	disk, err := o.OpenDisk(dev.Path, shared)
	if err != nil {
		return nil, err
	}
	if err := blk.CheckNumber(disk, dev.Number); err != nil {
		return nil, errors.Join(fmt.Errorf("volume %s: device %s: %w", o.state.Volume, dev.ID, err),
			disk.Close())
	}
	return disk, nil
}

// takeReadSlot waits for one of the slots that limit how many volumes' metadata is in memory. done
// releases the slot. Hold it only while reading the volume's disk and state. The slot is released
// after readSlotPatience in any case, so disks that hang do not block other volumes.
func (o *op) takeReadSlot(ctx context.Context) (done func(), err error) {
	select {
	case o.readSlots <- struct{}{}:
		give := sync.OnceFunc(func() { <-o.readSlots })
		overtaken := time.AfterFunc(readSlotPatience, give)
		return func() { overtaken.Stop(); give() }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("volume %s: wait for the disks of other volumes: %w", o.state.Volume,
			ctx.Err())
	}
}

// verified reads and verifies the metadata of the volume's disk. It reads the metadata twice, and
// refuses a disk that returns different bytes. Then it calls use with the disk, the metadata and
// the valid record. shared allows a disk that a mapping uses.
func (o *op) verified(ctx context.Context, dev backend.Device, keys *crypt.Keys, shared bool,
	use func(blk.Disk, *crypt.Metadata, crypt.Record) error) error {
	done, err := o.takeReadSlot(ctx)
	if err != nil {
		return err
	}
	defer done()
	disk, err := o.disk(dev, shared)
	if err != nil {
		return err
	}
	defer disk.Close()
	metadata, err := crypt.Read(disk)
	if err != nil {
		return fmt.Errorf("volume %s: %w", o.state.Volume, err)
	}
	record, err := metadata.Verify(keys, o.state.Identity(), o.state.want())
	if err == nil {
		err = metadata.Reread(disk)
	}
	if err != nil {
		return fmt.Errorf("volume %s: %w", o.state.Volume, err)
	}
	return use(disk, metadata, record)
}

// claim returns an error if the volume is deleted, or if another node than takeOver has it. An
// empty takeOver means that no volume is taken over.
func (o *op) claim(takeOver string) error {
	if o.state.Phase == Deleted {
		return fmt.Errorf("volume %s: %w", o.state.Volume, ErrDeleted)
	}
	if o.state.Writer == takeOver {
		return nil
	}
	return o.state.Busy(o.Node)
}

// usable returns an error for a snapshot and for an unfinished copy, because no pod may use them.
// what is the verb of the error.
func (o *op) usable(what string) error {
	switch {
	case o.state.Request.Snapshot:
		return fmt.Errorf("%s volume %s: %w", what, o.state.Volume, ErrSnapshot)
	case o.state.Phase == New && o.state.isCopy():
		return fmt.Errorf("%s volume %s: the copy of %s was not finished: create it again", what,
			o.state.Volume, o.state.Request.Source)
	}
	return nil
}
