package driver

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/csi/mount"
	"github.com/kubeveil/kubeveil/csi/volume"
)

// Rewrapped counts what Rewrap did.
type Rewrapped struct {
	// Changed counts the keys that were rewrapped, Current the keys that did not need it.
	Changed, Current int
}

// Rewrap rewraps the keys of this node's volumes and snapshots whose provider now uses another
// key-encryption key. The volumes stay open. Rewrap skips volumes whose key comes with requests.
// Rewrap continues after an error and returns all errors.
func (d *Driver) Rewrap(ctx context.Context) (Rewrapped, error) {
	var r Rewrapped
	states, err := d.states(ctx)
	errs := []error{err}

	// Each provider is called once, and only if a volume uses it. A provider that did not answer
	// has no entry.
	present, asked := map[string]string{}, map[string]bool{}
	for _, st := range states {
		p, err := d.kept(st.Request.Parameters)
		if err != nil || st.Key.IsZero() || d.Keys[p.Keys] == nil {
			continue
		}

		if !asked[p.Keys] {
			asked[p.Keys] = true
			if id, err := d.Keys[p.Keys].KeyID(ctx); err != nil {
				errs = append(errs, fmt.Errorf("provider %s: %w", p.Keys, err))
			} else {
				present[p.Keys] = id
			}
		}

		switch id, ok := present[p.Keys]; {
		case !ok:
			continue
		case st.Key.Provider == p.Keys && st.Key.KeyID == id:
			r.Current++
			continue
		}

		changed, err := d.RewrapVolume(ctx, st.Volume)
		if changed {
			r.Changed++
		}
		if !errors.Is(err, volume.ErrInProgress) {
			errs = append(errs, err)
		}
	}

	return r, errors.Join(errs...)
}

// RewrapVolume rewraps the key of one volume. changed reports whether the wrapped key changed.
func (d *Driver) RewrapVolume(ctx context.Context, id string) (changed bool, err error) {
	st, set, err := d.own(ctx, id)
	if err != nil {
		return false, err
	}
	p, err := d.kept(st.Request.Parameters)
	if err != nil {
		return false, err
	}
	if p.Keys == keyring.NameSecret {
		return false, failed("volume %s: a Secret holds its key-encryption key, which only "+
			"requests contain: write the new key beside the old into it, and use the volume", id)
	}
	return set.Rewrap(ctx, id, d.chain(d.Keys[p.Keys]))
}

// states returns the states of this node's volumes and snapshots. They include volumes that it took
// over and has open, but not volumes that another node has open. err joins the errors of states
// that cannot be read.
func (d *Driver) states(ctx context.Context) ([]volume.State, error) {
	all, err := d.reader().List(ctx)
	var own []volume.State
	for _, st := range all {
		if (st.Writer == d.Node || st.Writer == "" && st.Request.Node == d.Node) &&
			st.Phase != volume.Deleted {
			own = append(own, st)
		}
	}
	return own, err
}

// Trim discards the free blocks of open volumes with DiscardBatch, and returns their size in bytes.
func (d *Driver) Trim(ctx context.Context) (int64, error) {
	states, err := d.states(ctx)
	errs, done := []error{err}, int64(0)
	for _, st := range states {
		if p, err := d.kept(st.Request.Parameters); err != nil || p.Discard != DiscardBatch ||
			st.Writer != d.Node {
			continue
		}
		n, err := d.trim(ctx, st)
		done += n
		errs = append(errs, err)
	}
	return done, errors.Join(errs...)
}

// trim trims the file system of one volume. It returns 0 if the volume is not mounted for writing.
func (d *Driver) trim(ctx context.Context, st volume.State) (int64, error) {
	o, err := d.look(ctx, st.Volume)
	d.refused(st.Volume, err)
	if err != nil {
		return 0, nil // It was closed in the meantime.
	}
	all, err := d.Mounts.List()
	if err != nil {
		return 0, err
	}
	for _, at := range targets(all, o.Mapping.Number) {
		if m, _ := mount.At(all, at); m.Node || m.ReadOnly {
			continue
		}
		n, err := d.Mounts.Trim(ctx, at)
		if err != nil {
			err = fmt.Errorf("volume %s: %w", st.Volume, err)
		}
		return n, err
	}
	return 0, nil
}

// Every calls do now and after each interval until ctx ends. It logs an error and calls do again at
// the next interval.
func (d *Driver) Every(ctx context.Context, interval time.Duration, what string,
	do func(context.Context) error) {
	d.repeat(ctx, interval, what, false, do)
}

// Until is like Every, but ends when do returns nil.
func (d *Driver) Until(ctx context.Context, interval time.Duration, what string,
	do func(context.Context) error) {
	d.repeat(ctx, interval, what, true, do)
}

func (d *Driver) repeat(ctx context.Context, interval time.Duration, what string, once bool,
	do func(context.Context) error) {
	var said string
	var saidAt time.Time
	for {
		err := do(ctx)
		if err == nil && once {
			return
		}
		// Work that runs every second logs the same error no more than once a minute.
		if err != nil && ctx.Err() == nil && (err.Error() != said ||
			time.Since(saidAt) >= time.Minute) {
			said, saidAt = err.Error(), time.Now()
			d.Log.Warn("upkeep ended with an error; it is tried again", "what", what,
				"next", interval, "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(interval + jitter(interval)):
		}
	}
}

// jitter returns a random duration up to a tenth of interval. It spreads the work of drivers that
// started together.
func jitter(interval time.Duration) time.Duration {
	return rand.N(interval/10 + 1)
}
