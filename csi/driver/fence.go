package driver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/csi/backend"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/internal/blk"
	"github.com/kubeveil/kubeveil/csi/volume"
)

const (
	// fencePatience is how long the fence of one volume may delay the fences of others. A fence
	// waits for the requests that were already sent to the disk.
	fencePatience = 10 * time.Second
	// strayConfirm is the delay before the second look-up of a mapping without a volume, strayAgain
	// the delay before each further one. A look-up may read all states.
	strayConfirm = 5 * time.Second
	strayAgain   = 10 * time.Minute
)

// FenceLost fences this node's mappings of volumes that another node has taken over
// (volume.Set.FenceByState). Calls about such a volume do that too, but a node without a kubelet
// gets no calls. FenceLost continues after an error and returns all errors.
//
// Call it every second: it is cheap while the cache has the volumes of all mappings. It reads a
// volume that the cache lacks from the store. If the API server is away, or refuses this node's
// token because its Node was deleted, FenceLost learns nothing and fences nothing.
func (d *Driver) FenceLost(ctx context.Context) error {
	names, err := d.anySet.Engine.List(ctx, dmcrypt.NamePrefixAll)
	if err != nil {
		return err
	}

	volumes, err := d.mapped(ctx, names)
	errs := []error{err}
	for _, id := range volumes {
		if !d.strays.due(id) {
			continue
		}

		st, _, err := d.reader().Get(ctx, id)
		switch {
		case errors.Is(err, volume.ErrNotFound):
			if d.strays.missed(id) > 1 {
				errs = append(errs, d.closeOrphans(ctx, id, d.strays.of(id)))
			}
		case err == nil && st.Writer == d.Node:
			d.strays.found(id)
			d.refused(id, nil)
		case err == nil:
			d.strays.found(id)
			errs = append(errs, d.fenceVolume(ctx, st))
		case errors.Is(err, volume.ErrState):
			errs = append(errs, err)
		default:
			// The store would return the same error for all other volumes.
			return errors.Join(append(errs, err)...)
		}
	}

	return errors.Join(errs...)
}

// mapped returns the volumes of the mappings with these names, and closes mappings whose volume the
// store twice did not find. The volume of a mapping is known only from the states, whose UUIDs are
// in the mappings' names. mapped reads the cache first, then the store. err joins the errors of
// closing and of states that cannot be read: an unreadable state may belong to a mapping.
func (d *Driver) mapped(ctx context.Context, names []string) ([]string, error) {
	unknown := d.strays.keep(names)
	if len(unknown) == 0 {
		return d.strays.volumes(), nil
	}
	states, err := d.reader().List(ctx)
	if unknown = d.strays.learn(unknown, states); len(unknown) == 0 {
		return d.strays.volumes(), nil
	}
	if d.Cache != nil {
		unknown = slices.DeleteFunc(unknown, func(name string) bool { return !d.strays.due(name) })
		if len(unknown) == 0 {
			return d.strays.volumes(), err
		}
		states, err = d.anySet.Store.List(ctx)
		unknown = d.strays.learn(unknown, states)
	}
	if err == nil {
		for _, name := range unknown {
			if d.strays.missed(name) > 1 {
				err = errors.Join(err, d.closeOrphans(ctx, "", []string{name}))
			}
		}
	}
	return d.strays.volumes(), err
}

// closeOrphans closes the named mappings of volume id, which the store does not have. An empty id
// means that the volume is unknown. A mapping in use stays open, and is logged and counted.
func (d *Driver) closeOrphans(ctx context.Context, id string, names []string) error {
	var errs []error
	for _, name := range names {
		whose := id
		m, err := d.anySet.Engine.Lookup(ctx, name)
		if below, ok := m.Below(); err == nil && ok && whose == "" {
			whose = volumeOfFile(blk.BackingFile(below))
		}
		closed := false
		for _, set := range d.Sets {
			if closed, err = set.CloseOrphan(ctx, whose, name); err != nil {
				break
			}
		}
		if err == nil && !closed {
			d.Log.Warn("a mapping is in use, but its VeilVolume was deleted: end the pods that "+
				"use it, or restore the VeilVolume", "mapping", name, "volume", whose, "open",
				m.Open)
			d.orphaned(whose)
		}
		if !errors.Is(err, volume.ErrInProgress) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// volumeOfFile returns the volume whose backing file is path, or an empty string if path is not a
// backing file.
func volumeOfFile(path string) string {
	id, ok := strings.CutSuffix(filepath.Base(path), backend.FileSuffix)
	if !ok || backend.CheckName(id) != nil {
		return ""
	}
	return id
}

// Orphans returns how many mappings have no volume: the store twice did not find one.
func (d *Driver) Orphans() int { return d.strays.orphans() }

// strays remembers the volumes of mappings, and the mappings that have none. Use newStrays.
type strays struct {
	mu sync.Mutex
	// volumeByName maps the names of mappings to their volumes. A mapping of an unknown volume has
	// no entry.
	volumeByName map[string]string
	// missing counts failed look-ups. Its keys are names of mappings whose volume is unknown, and
	// ids of volumes that the store did not find.
	missing map[string]miss
}

// miss counts failed look-ups. The next look-up is due at next.
type miss struct {
	times int
	next  time.Time
}

func newStrays() *strays {
	return &strays{volumeByName: map[string]string{}, missing: map[string]miss{}}
}

// keep forgets all mappings except names, and returns those of names whose volume is unknown.
func (s *strays) keep(names []string) (unknown []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.volumeByName, func(name, _ string) bool {
		return !slices.Contains(names, name)
	})
	known := slices.Collect(maps.Values(s.volumeByName))
	maps.DeleteFunc(s.missing, func(what string, _ miss) bool {
		return !slices.Contains(names, what) && !slices.Contains(known, what)
	})
	for _, name := range names {
		if s.volumeByName[name] == "" {
			unknown = append(unknown, name)
		}
	}
	return unknown
}

// learn stores the volumes of the mappings names that states reveal. It returns the other mappings.
func (s *strays) learn(names []string, states []volume.State) (unknown []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		i := slices.IndexFunc(states, func(st volume.State) bool {
			_, ok := dmcrypt.EpochOf(st.UUID, name)
			return ok
		})
		if i < 0 {
			unknown = append(unknown, name)
			continue
		}
		s.volumeByName[name] = states[i].Volume
		delete(s.missing, name)
	}
	return unknown
}

// volumes returns the known volumes of all mappings.
func (s *strays) volumes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Compact(slices.Sorted(maps.Values(s.volumeByName)))
}

// due reports whether the next look-up of what is due. what is a volume or the name of a mapping.
func (s *strays) due(what string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !time.Now().Before(s.missing[what].next)
}

// missed counts a failed look-up of what, and returns their number.
func (s *strays) missed(what string) (times int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.missing[what]
	m.times++
	m.next = time.Now().Add(strayAgain)
	if m.times == 1 {
		m.next = time.Now().Add(strayConfirm)
	}
	s.missing[what] = m
	return m.times
}

// volume returns the volume of a mapping, or an empty string if it is not known.
func (s *strays) volume(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.volumeByName[name]
}

// of returns the mappings of a volume.
func (s *strays) of(volume string) (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, v := range s.volumeByName {
		if v == volume {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// orphans returns how many mappings have no volume, after at least two failed look-ups.
func (s *strays) orphans() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for what, m := range s.missing {
		if m.times < 2 {
			continue
		}
		mappings := 0
		for _, v := range s.volumeByName {
			if v == what {
				mappings++
			}
		}
		n += max(mappings, 1) // Without an entry in volumeByName, what is the name of a mapping.
	}
	return n
}

// found resets the failed look-ups of a volume.
func (s *strays) found(volume string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.missing, volume)
}

// fenceVolume fences the mappings of a volume. A fence that hangs continues in the background;
// further fences of the volume are skipped until it ends.
func (d *Driver) fenceVolume(ctx context.Context, st volume.State) error {
	set, err := d.set(st)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		err := set.FenceByState(context.WithoutCancel(ctx), st.Volume)
		d.refused(st.Volume, err)
		done <- err
	}()
	select {
	case err = <-done:
	case <-ctx.Done():
		err = ctx.Err()
	case <-time.After(fencePatience):
		err = fmt.Errorf("volume %s: fence mapping: disk has not answered for %v",
			st.Volume, fencePatience)
	}
	if errors.Is(err, volume.ErrInProgress) {
		err = nil
	}
	return err
}
