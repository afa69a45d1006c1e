package volume

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
)

// suspendLimit is the longest time that the source of a copy is suspended. The time starts with the
// request to suspend, because flushing the file system already delays its writers.
const suspendLimit = 30 * time.Second

// copySuspended copies the backing while the source is suspended. After o.limit it resumes the
// source and abandons the copy. A copy of a source that is not open, with an empty open, has no
// limit.
func (o *op) copySuspended(ctx context.Context, from *op, open string, size int64) error {
	limited, cancel := context.WithTimeoutCause(ctx, o.limit,
		fmt.Errorf("%w: %v; close it, or keep volumes on a file system that shares blocks",
			ErrTooLong, o.limit))
	defer cancel()
	resume, err := from.suspend(ctx, open)
	if err != nil {
		return err
	}
	if resume == nil {
		return o.Backend.Copy(ctx, o.state.Volume, from.state.Volume, size)
	}

	resumeOnce := sync.OnceValue(func() error { return from.resumeWithRetry(ctx, resume) })
	// Resume the source even if the copy hangs: the copy may flush data that waits for the source.
	stop := context.AfterFunc(limited, func() { _ = resumeOnce() })
	if err = limited.Err(); err == nil {
		err = o.Backend.Copy(limited, o.state.Volume, from.state.Volume, size)
	}

	if stop(); context.Cause(limited) != nil {
		// The source may have resumed before the copy was done. Then the copy does not have the
		// content of one moment.
		err = fmt.Errorf("copy volume %s to %s: %w", from.state.Volume, o.state.Volume,
			errors.Join(context.Cause(limited), err))
	}

	return errors.Join(err, resumeOnce())
}

// resumePauses are the waits before each further attempt to resume a volume. A lack of memory, for
// example, may soon end.
var resumePauses = []time.Duration{
	100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond, 800 * time.Millisecond,
	1600 * time.Millisecond, 3200 * time.Millisecond,
}

// resumeWithRetry calls resume, and retries on failure because pods wait for the volume. It returns
// ErrSuspended if every attempt fails. Once ctx has ended it no longer waits between attempts,
// because the next process can resume the volume (Resume). It returns dmcrypt.ErrNoMapping at once.
func (o *op) resumeWithRetry(ctx context.Context, resume func() error) error {
	err := resume()
	for _, pause := range o.pauses {
		if err == nil || errors.Is(err, dmcrypt.ErrNoMapping) {
			return err
		}
		o.log.Warn("volume is still suspended: trying again to resume it",
			"next", pause, "error", err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		err = resume()
	}
	if err == nil || errors.Is(err, dmcrypt.ErrNoMapping) {
		return err
	}
	o.log.Error("cannot resume a suspended volume: if it stays suspended, run dmsetup resume "+
		"MAPPING", "error", err)
	return fmt.Errorf("volume %s: %w: %w", o.state.Volume, ErrSuspended, err)
}

// suspend suspends the mapping open of the source o, which also freezes its file system. resume
// resumes it. A nil resume means that the source is not open.
func (o *op) suspend(ctx context.Context, open string) (resume func() error, err error) {
	if open == "" {
		return nil, nil
	}
	if err := o.markSuspended(open); err != nil {
		return nil, err
	}
	resume = func() error {
		err := o.Engine.Suspend(context.WithoutCancel(ctx), open, false)
		if err == nil || errors.Is(err, dmcrypt.ErrNoMapping) {
			o.unmarkSuspended(open)
		}
		return err
	}
	if err := o.Engine.Suspend(ctx, open, true); err != nil {
		return nil, errors.Join(fmt.Errorf("suspend volume %s: %w", o.state.Volume, err),
			o.resumeWithRetry(ctx, resume))
	}
	return resume, nil
}

// Resume resumes the mappings that a copy left suspended when its process died. Call it when the
// driver starts, and repeat it until it returns nil. ErrInProgress means that another process has
// locked a volume; it may still die and leave the volume suspended. A state that cannot be read
// delays only its own volume.
func (s *Set) Resume(ctx context.Context) error {
	return errors.Join(s.ResumeMarked(ctx), s.resumeUnmarked(ctx))
}

// resumeUnmarked resumes suspended mappings without a mark. It finds their volumes with the states
// in the store.
func (s *Set) resumeUnmarked(ctx context.Context) error {
	names, err := s.Engine.List(ctx, dmcrypt.NamePrefixAll)
	if err != nil {
		return err
	}

	var suspended []string
	for _, name := range names {
		if m, err := s.Engine.Lookup(ctx, name); err == nil && m.Suspended {
			suspended = append(suspended, name)
		}
	}

	if len(suspended) == 0 {
		return nil
	}

	states, unread := s.Store.List(ctx)
	volumeByName := map[string]string{}
	for _, st := range states {
		// Skip a volume that another node took over: FenceByState fences its mapping, which also
		// resumes it.
		if st.Busy(s.Node) == nil {
			volumeByName[dmcrypt.Expected(st.UUID, st.Epoch, 0, 0, "", false).Name] = st.Volume
		}
	}

	var errs []error
	for _, name := range suspended {
		volume, ok := volumeByName[name]
		if !ok && unread != nil {
			errs = append(errs, fmt.Errorf("resume mapping %s: the state of its volume cannot be "+
				"read: %w", name, unread))
			continue
		}
		if !ok {
			s.Log.Warn("a mapping stays suspended, because it belongs to no volume of this node",
				"mapping", name)
			continue
		}
		errs = append(errs, s.resume(ctx, volume, name))
	}

	return errors.Join(errs...)
}

// ResumeVolume resumes one volume after its copy returned ErrSuspended. Repeat it until it returns
// nil. It returns nil for a volume that is not open on this node.
func (s *Set) ResumeVolume(ctx context.Context, volume string) error {
	o, err := s.Find(ctx, volume)
	if errors.Is(err, dmcrypt.ErrNoMapping) || errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil || !o.Mapping.Suspended {
		return err
	}
	return s.resume(ctx, volume, o.Mapping.Name)
}

func (s *Set) resume(ctx context.Context, volume, name string) error {
	unlock, err := s.lock(volume)
	if err != nil {
		return fmt.Errorf("resume mapping %s: %w", name, err)
	}
	defer unlock()
	if m, err := s.Engine.Lookup(ctx, name); err == nil && m.Dead() {
		s.unmarkSuspended(name)
		return nil // The mapping was fenced.
	}
	if err := s.Engine.Suspend(ctx, name, false); err != nil &&
		!errors.Is(err, dmcrypt.ErrNoMapping) {
		return err
	}
	s.unmarkSuspended(name)
	s.Log.Info("mapping resumed: a copy of its volume had left it suspended", "volume", volume,
		"mapping", name)
	return nil
}
