package volume

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kubeveil/kubeveil/csi/backend"
	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/internal/blk"
	"github.com/kubeveil/kubeveil/csi/keyring"
)

// undoPatience limits the clean-up after a failed copy.
const undoPatience = 30 * time.Second

// CopyOptions configure a copy. The zero value copies at the size of the source.
type CopyOptions struct {
	// Size is the minimum size of the copy in bytes. The value 0 means the size of the source. Copy
	// does not grow the file system.
	Size int64
	// Snapshot makes the copy a snapshot, which can be copied and deleted but never opened.
	Snapshot bool
	// Request is stored in the copy's state. Copy sets its Source and Snapshot.
	Request Request
	// Keys wraps the key of the copy. Nil means the provider of the Set. The key of the source is
	// unwrapped with the provider of the Set, or with Keys.
	Keys keyring.Provider
}

// Copy makes the volume dst from the present content of src. src may be open on this node, but not
// on another. Copy may be called again. It returns ErrExists if dst exists with another request. It
// first formats a source that was never opened.
//
// After an error, dst may be in one of three conditions. It does not exist. It has a state in NEW,
// which Delete removes. Or it has a state in FORMATTING: then another call completes it without the
// source. After ErrSuspended the source is still suspended: call ResumeVolume.
func (s *Set) Copy(ctx context.Context, dst, src string, opts CopyOptions) (State, error) {
	unlock, err := s.lock(dst)
	if err != nil {
		return State{}, err
	}
	defer unlock()
	if err := s.createCopy(ctx, dst, src, opts); err != nil {
		return State{}, err
	}
	o, err := s.load(ctx, dst, opts.Keys)
	if err != nil {
		return State{}, err
	}

	if err := o.claim(""); err != nil {
		return o.state, err
	}

	if o.state.Phase == New {
		if err := o.copyFrom(ctx, opts); err != nil {
			return State{}, err
		}
	}

	if o.state.Phase == Formatting {
		if _, err := o.ensureFormatted(ctx, ""); err != nil {
			return o.state, o.release(ctx, err)
		}
		o.log.Info("volume copied", "source", src, "snapshot", opts.Snapshot)
	}

	if o.state.Writer != "" {
		return o.state, nil
	}
	return o.state, o.Backend.Detach(ctx, dst)
}

// createCopy creates the state of a copy. It returns nil if a state with the same request exists.
// The size of a state in NEW may differ, because copyFrom sets it again: the source may have grown.
func (s *Set) createCopy(ctx context.Context, dst, src string, opts CopyOptions) error {
	request := opts.Request
	request.Source, request.Snapshot = src, opts.Snapshot
	have, _, unread := s.get(ctx, dst)
	switch {
	case errors.Is(unread, ErrNotFound):
	case errors.Is(unread, ErrState):
		// The creation of the state may have been interrupted. Store.Create then completes it
		// (kubestore). For any other invalid state Create returns ErrExists.
	case unread != nil:
		return unread
	case !have.Request.same(request):
		return fmt.Errorf("volume %s: %w: its first request was %+v, and this one is %+v", dst,
			ErrExists, have.Request, request)
	case opts.Size > 0 && have.Phase != New && have.Payload != crypt.PayloadSize(opts.Size):
		return fmt.Errorf("volume %s: %w: it has %d bytes, %d are wanted", dst, ErrExists,
			have.Payload, opts.Size)
	default:
		return nil
	}

	from, _, err := s.get(ctx, src)
	if err != nil {
		return fmt.Errorf("copy to volume %s: %w", dst, err)
	}
	size, err := copySize(src, from.Payload, opts.Size)
	if err != nil {
		return fmt.Errorf("copy to volume %s: %w", dst, err)
	}
	st := s.newState(dst, size, request)
	if err := st.Check(); err != nil {
		return err
	}

	err = s.Store.Create(ctx, st)
	if errors.Is(err, ErrExists) && errors.Is(unread, ErrState) {
		err = unread
	}

	return err
}

// copySize returns the size of a copy of the volume from, which has payload bytes. 0 for want means
// the size of from. A smaller want is ErrSmaller.
func copySize(from string, payload, want int64) (int64, error) {
	if want == 0 {
		return payload, nil
	}
	if size := crypt.PayloadSize(want); size >= payload {
		return size, nil
	}
	return 0, fmt.Errorf("volume %s: %w: it has %d bytes, %d are wanted", from, ErrSmaller, payload,
		want)
}

// copyFrom copies the backing of the source and moves the copy from NEW to FORMATTING. After an
// error it removes the copy's state and backing.
func (o *op) copyFrom(ctx context.Context, opts CopyOptions) error {
	if err := o.removeUnfinished(ctx); err != nil {
		return err
	}
	err := o.copyAndVerify(ctx, opts)
	if err == nil {
		return nil
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoPatience)
	defer cancel()
	// Remove the state first. Then a pending update of the state cannot succeed and need the
	// backing.
	gone := o.Store.Remove(undo, o.state.Volume, o.revision)
	// ErrExists means that another process made the backing in the meantime: keep it.
	if gone == nil && !errors.Is(err, backend.ErrExists) {
		gone = o.removeBacking(undo)
	}
	return errors.Join(err, gone)
}

func (o *op) removeBacking(ctx context.Context) error {
	return errors.Join(o.Backend.Detach(ctx, o.state.Volume), o.Backend.Delete(ctx, o.state.Volume))
}

// removeUnfinished removes the backing of an attempt that died before FORMATTING. Such a backing
// has the source's record. removeUnfinished refuses any other backing: the state may be from a
// backup, and the backing may be this volume.
func (o *op) removeUnfinished(ctx context.Context) error {
	dev, err := o.Backend.Attach(ctx, o.state.Volume)
	if errors.Is(err, backend.ErrMissing) {
		return nil
	}
	if err != nil {
		return err
	}
	disk, err := o.disk(dev, false)
	if err != nil {
		return o.release(ctx, err)
	}
	metadata, err := crypt.Read(disk)
	disk.Close()
	if err != nil {
		return o.release(ctx, fmt.Errorf("copy to volume %s: %w", o.state.Volume, err))
	}
	if names, ok := metadata.Claims(); !ok || names != o.state.origin().Binding {
		refused := &crypt.RefusedError{Kind: crypt.NotEmpty, What: "device " + dev.ID,
			Expected: "nothing, or a copy of " + o.state.Request.Source,
			Found:    metadata.Describe()}
		return o.release(ctx, fmt.Errorf("copy to volume %s: %w", o.state.Volume, refused))
	}
	return o.removeBacking(ctx)
}

// copyAndVerify copies the source, verifies the record of the copy, and updates the state to
// FORMATTING.
func (o *op) copyAndVerify(ctx context.Context, opts CopyOptions) error {
	from, err := o.begin(ctx, o.state.Request.Source, unwrapper(o.Keys, opts.Keys))
	if err != nil {
		return err
	}
	defer from.unlock()
	open, payload, err := from.prepareSource(ctx)
	if err != nil {
		return err
	}

	data, err := from.dataKey(ctx)
	if err != nil {
		return err
	}
	defer data.Wipe()
	next := o.state
	if next.Payload, err = copySize(from.state.Volume, payload, opts.Size); err != nil {
		return err
	}
	if next.Key, err = keyring.WrapChecked(ctx, o.provider, o.state.Binding(), data); err != nil {
		return err
	}

	if err := o.copySuspended(ctx, from, open, crypt.DeviceSize(next.Payload)); err != nil {
		return err
	}
	dev, err := o.Backend.Attach(ctx, o.state.Volume)
	if err != nil {
		return err
	}

	keys, err := crypt.DeriveKeys(data, from.state.Binding())
	if err != nil {
		return err
	}
	defer keys.Wipe()
	if err := from.verified(ctx, dev, keys, false,
		func(_ blk.Disk, _ *crypt.Metadata, r crypt.Record) error {
			next.Origin = Origin{r.UUID, r.Sequence, r.Epoch, r.Payload}
			return nil
		}); err != nil {
		return fmt.Errorf("copy to volume %s: %w", o.state.Volume, err)
	}

	if next.UUID, err = crypt.NewUUID(); err != nil {
		return err
	}

	next.Phase, next.Writer, next.Device = Formatting, o.Node, dev.ID
	next.Content, next.Mode = from.state.Content, from.state.Mode
	return o.updateState(ctx, next)
}

// unwrapper returns a provider that tries all providers that are not nil. It returns nil if there
// are none.
func unwrapper(providers ...keyring.Provider) keyring.Provider {
	var c keyring.Chain
	for _, p := range providers {
		if p != nil {
			c = append(c, p)
		}
	}
	if len(c) == 0 {
		return nil
	}
	return c
}

// prepareSource prepares the source o for a copy: it formats a new volume, and makes the two
// records on the disk equal. open is the name of the source's mapping, or empty. payload is the
// source's size in bytes according to the disk; the state may allow two sizes.
func (o *op) prepareSource(ctx context.Context) (open string, payload int64, err error) {
	if err := o.claim(""); err != nil {
		return "", 0, err
	}
	if o.state.isCopy() && o.state.Phase == New {
		return "", 0, o.usable("copy")
	}
	if open, _, err = o.mappings(ctx, o.state); err != nil {
		return "", 0, err
	}
	if o.state.Phase == Ready && o.state.PendingEpoch == 0 && o.state.PendingPayload == 0 {
		return open, o.state.Payload, nil
	}
	dev, err := o.ensureFormatted(ctx, "")
	if err == nil {
		payload, err = o.equalizeRecords(ctx, dev, open != "")
	}
	if err != nil {
		return open, payload, o.release(ctx, err)
	}
	if open != "" {
		return open, payload, nil
	}
	return "", payload, o.Backend.Detach(ctx, o.state.Volume)
}

// equalizeRecords rewrites both copies of the record from the valid one, if a write of the record
// may have been interrupted. It returns the size in bytes in that record.
func (o *op) equalizeRecords(ctx context.Context, dev backend.Device,
	shared bool) (payload int64, err error) {
	if o.state.PendingEpoch == 0 && o.state.PendingPayload == 0 {
		return o.state.Payload, nil
	}
	keys, err := o.deriveKeys(ctx)
	if err != nil {
		return 0, err
	}
	defer keys.Wipe()
	err = o.verified(ctx, dev, keys, shared,
		func(disk blk.Disk, metadata *crypt.Metadata, r crypt.Record) error {
			payload = r.Payload
			// Update the state even if it is already equal: another node may have taken the volume
			// over since it was read. See step.
			if err := o.updateState(ctx, o.state); err != nil {
				return err
			}
			return metadata.Seal(disk, keys, r.Next(r.Epoch, r.Payload))
		})
	return payload, err
}
