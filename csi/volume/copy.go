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

// undoPatience bounds the clean-up after a copy that failed.
const undoPatience = 30 * time.Second

// CopyOptions say how a copy is made. The zero value is a volume as large as its source.
type CopyOptions struct {
	// Size is what the copy has at least, bytes; 0 is the size of the source. A file system on it
	// is not grown here.
	Size int64
	// Snapshot makes a copy that can only be copied and deleted.
	Snapshot bool
	// Request is what is kept of the request; Source and Snapshot in it are set here.
	Request Request
	// Keys is the provider that wraps the key of the copy; nil is the Set's. SourceKeys unwraps
	// that of the source; nil is the Set's, or Keys.
	Keys, SourceKeys keyring.Provider
	// Freeze brings the source to a standstill, flushed, until thaw, which is called again when it
	// fails. Nil is for all that need no more than the mapping suspended, which freezes a file
	// system on it, too, and is undone by Resume after a crash. It must not use the Set. What it
	// does must end with the process: Resume knows nothing of it.
	Freeze func(ctx context.Context) (thaw func() error, err error)
	// Limit is how long the source may stand still, 0 is FreezeLimit; it is thawed then, whatever
	// the copy does. A source that is not open stands still by itself, for as long as it takes.
	Limit time.Duration
}

// Copy makes the volume dst from what is on src now, which may be open on this node or closed. It
// may be called again, and is then no error; one that was made otherwise is ErrExists. A source
// that was never opened is formatted first. After an error there is nothing of dst, unless its
// formatting was reached: then it is continued by calling again, also without the source. One that
// comes before anything was copied may leave its state, in NEW, which Delete takes. After ErrStill
// the source does not go on: see ResumeVolume.
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
		return o.State, err
	}

	if o.Phase == New {
		if err := o.copyFrom(ctx, opts); err != nil {
			return State{}, err
		}
	}

	if o.Phase == Formatting {
		if _, err := o.ready(ctx, ""); err != nil {
			return o.State, o.release(ctx, err)
		}
		o.log.Info("volume copied", "source", src, "snapshot", opts.Snapshot)
	}

	if o.Writer != "" {
		return o.State, nil
	}
	return o.State, o.Backend.Detach(ctx, dst)
}

// createCopy makes the state of a copy, unless there is one of the same request. What is in NEW is
// nothing yet: it becomes as large as is asked for now, its source may have grown since.
func (s *Set) createCopy(ctx context.Context, dst, src string, opts CopyOptions) error {
	request := opts.Request
	request.Source, request.Snapshot = src, opts.Snapshot
	have, _, unread := s.get(ctx, dst)
	switch {
	case errors.Is(unread, ErrNotFound):
	case errors.Is(unread, ErrState):
		// Perhaps its creation was cut short: then the store goes on with that (kubestore). Of any
		// other it says that it exists.
	case unread != nil:
		return unread
	case !have.Request.same(request):
		return fmt.Errorf("volume %s: %w: it was asked for otherwise: %+v, and now %+v", dst,
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

// copySize is the payload of a copy of a volume that has payload bytes.
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

// copyFrom takes a copy from NEW to FORMATTING: its backing holds what the source's does. On an
// error there is neither backing nor state.
func (o *op) copyFrom(ctx context.Context, opts CopyOptions) error {
	if err := o.discardUnfinished(ctx); err != nil {
		return err
	}
	err := o.fill(ctx, opts)
	if err == nil {
		return nil
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoPatience)
	defer cancel()
	// The state first: once it is gone no update of it that is still under way can make the backing
	// one that is needed.
	gone := o.Store.Remove(undo, o.Volume, o.revision)
	// A backing that came to be there meanwhile was made by somebody else.
	if gone == nil && !errors.Is(err, backend.ErrExists) {
		gone = o.discardBacking(undo)
	}
	return errors.Join(err, gone)
}

func (o *op) discardBacking(ctx context.Context) error {
	return errors.Join(o.Backend.Detach(ctx, o.Volume), o.Backend.Delete(ctx, o.Volume))
}

// discardUnfinished removes the backing that an attempt left which died before FORMATTING. It says
// that it is the source: anything else, such as this very volume under a state from a backup, is
// refused and left alone.
func (o *op) discardUnfinished(ctx context.Context) error {
	dev, err := o.Backend.Attach(ctx, o.Volume)
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
		return o.release(ctx, fmt.Errorf("copy to volume %s: %w", o.Volume, err))
	}
	if names, ok := metadata.Claims(); !ok || names != o.origin().Binding {
		return o.release(ctx, fmt.Errorf("copy to volume %s: %w", o.Volume, &crypt.RefusedError{
			Kind: crypt.NotEmpty, What: "device " + dev.ID, Expected: "nothing, or a copy of " +
				o.Request.Source, Found: metadata.Describe()}))
	}
	return o.discardBacking(ctx)
}

// fill copies the source, checks that this is what was copied, and keeps with the state what
// FORMATTING needs.
func (o *op) fill(ctx context.Context, opts CopyOptions) error {
	from, err := o.begin(ctx, o.Request.Source, unwrapper(opts.SourceKeys, o.Keys, opts.Keys))
	if err != nil {
		return err
	}
	defer from.unlock()
	open, payload, err := from.settle(ctx)
	if err != nil {
		return err
	}

	data, err := from.dataKey(ctx)
	if err != nil {
		return err
	}
	defer data.Wipe()
	next := o.State
	if next.Payload, err = copySize(from.Volume, payload, opts.Size); err != nil {
		return err
	}
	if next.Key, err = keyring.WrapChecked(ctx, o.keys, o.Binding(), data); err != nil {
		return err
	}

	if err := o.copyStill(ctx, from, open, crypt.DeviceSize(next.Payload), opts); err != nil {
		return err
	}
	dev, err := o.Backend.Attach(ctx, o.Volume)
	if err != nil {
		return err
	}

	keys, err := crypt.DeriveKeys(data, from.Binding())
	if err != nil {
		return err
	}
	defer keys.Wipe()
	if err := from.verified(ctx, dev, keys, false,
		func(_ blk.Disk, _ *crypt.Metadata, r crypt.Record) error {
			next.Origin = Origin{r.UUID, r.Sequence, r.Epoch, r.Payload}
			return nil
		}); err != nil {
		return fmt.Errorf("copy to volume %s: %w", o.Volume, err)
	}

	if next.UUID, err = crypt.NewUUID(); err != nil {
		return err
	}

	next.Phase, next.Writer, next.Device, next.Content = Formatting, o.Node, dev.ID, from.Content
	return o.swap(ctx, next)
}

// unwrapper returns one provider of those that there are.
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

// settle makes the source one that can be copied: formatted, and with two equal records on its
// disk. open is the name of its mapping, if it has one; payload is its size, bytes, which is what
// its disk says where the state says that it may be larger.
func (o *op) settle(ctx context.Context) (open string, payload int64, err error) {
	if err := o.claim(""); err != nil {
		return "", 0, err
	}
	if o.isCopy() && o.Phase == New {
		return "", 0, o.usable("copy")
	}
	if open, _, err = o.mappings(ctx, o.State); err != nil {
		return "", 0, err
	}
	if o.Phase == Ready && o.PendingEpoch == 0 && o.PendingPayload == 0 {
		return open, o.Payload, nil
	}
	dev, err := o.ready(ctx, "")
	if err == nil {
		payload, err = o.even(ctx, dev, open != "")
	}
	if err != nil {
		return open, payload, o.release(ctx, err)
	}
	if open != "" {
		return open, payload, nil
	}
	return "", payload, o.Backend.Detach(ctx, o.Volume)
}

// even writes both copies of the record again as the one says that counts, after a writing that may
// have been cut short, and returns the size that it says.
func (o *op) even(ctx context.Context, dev backend.Device, shared bool) (payload int64, err error) {
	if o.PendingEpoch == 0 && o.PendingPayload == 0 {
		return o.Payload, nil
	}
	keys, err := o.deriveKeys(ctx)
	if err != nil {
		return 0, err
	}
	defer keys.Wipe()
	err = o.verified(ctx, dev, keys, shared,
		func(disk blk.Disk, metadata *crypt.Metadata, r crypt.Record) error {
			payload = r.Payload
			// The state says all of this already, but another node may have taken the volume over
			// since it was read, see step.
			if err := o.swap(ctx, o.State); err != nil {
				return err
			}
			return metadata.Seal(disk, keys, r.Next(r.Epoch, r.Payload))
		})
	return payload, err
}
