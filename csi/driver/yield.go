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
	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/internal/blk"
	"github.com/kubeveil/kubeveil/csi/volume"
)

const (
	// fencePatience is how long one volume may keep others from being fenced: a fence waits for
	// what its disk has been given.
	fencePatience = 10 * time.Second
	// strayConfirm is how long after a first look a mapping without a volume is looked up again,
	// strayAgain how long after each further one. Such a look may read all states.
	strayConfirm = 5 * time.Second
	strayAgain   = 10 * time.Minute
)

// Yield fences what is mapped here of volumes that this node has no more (volume.Set.Yield). A call
// about such a volume does that, too, but nobody calls on a node whose kubelet is gone. It goes on
// after an error of one volume, and returns all of them. It is cheap where the cache knows the
// volumes of all mappings, so call it every second; a volume that the cache does not know is read
// from the store. When the API server is away, or refuses this node's token because its Node was
// deleted, nothing is heard, and nothing is fenced.
func (d *Driver) Yield(ctx context.Context) error {
	names, err := d.any.Engine.List(ctx, crypt.NamePrefixAll)
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
		case err == nil:
			d.strays.found(id)
			errs = append(errs, d.fence(ctx, st))
		case errors.Is(err, volume.ErrState):
			errs = append(errs, err)
		default:
			return errors.Join(append(errs, err)...) // It would say the same of all others.
		}
	}

	return errors.Join(errs...)
}

// mapped returns the volumes of the mappings with these names. Only states say whose a mapping is:
// those of this node, which the cache has, and of all nodes where one is in none of them. The error
// is of states that could not be read, of which one may be a mapping's.
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
		states, err = d.any.Store.List(ctx)
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

// closeOrphans closes mappings of a volume that the store has twice said not to have, empty being
// one that nobody knows. What is in use stays open, is said, and is counted.
func (d *Driver) closeOrphans(ctx context.Context, id string, names []string) error {
	var errs []error
	for _, name := range names {
		whose := id
		m, err := d.any.Engine.Lookup(ctx, name)
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
			d.Log.Warn("mapping is in use, and its volume has no state: nobody can close it; end "+
				"what uses it, "+
				"or put the VeilVolume back", "mapping", name, "volume", whose, "open", m.Open)
		}
		if !errors.Is(err, volume.ErrInProgress) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// volumeOfFile returns the volume whose file has that path; empty for a path that is no volume's.
func volumeOfFile(path string) string {
	id, ok := strings.CutSuffix(filepath.Base(path), backend.FileSuffix)
	if !ok || backend.CheckName(id) != nil {
		return ""
	}
	return id
}

// Orphans returns how many mappings have no volume: each of their volumes was looked for twice in
// vain.
func (d *Driver) Orphans() int { return d.strays.orphans() }

// strays remembers whose mappings are, and which are nobody's. Use newStrays.
type strays struct {
	mu sync.Mutex
	// volumeByName are the volumes of mappings, as far as they are known.
	volumeByName map[string]string
	// missing are mappings whose volume is not known, by their names, and volumes that are not
	// found.
	missing map[string]miss
}

// miss is how often something was looked for in vain, and when to look again.
type miss struct {
	times int
	next  time.Time
}

func newStrays() *strays {
	return &strays{volumeByName: map[string]string{}, missing: map[string]miss{}}
}

// keep forgets all mappings but these, and returns those whose volume is not known.
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

// learn returns which of the mappings are of none of these volumes.
func (s *strays) learn(names []string, states []volume.State) (unknown []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		i := slices.IndexFunc(states, func(st volume.State) bool {
			_, ok := crypt.EpochOf(st.UUID, name)
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

// volumes returns the volumes of all mappings whose volume is known.
func (s *strays) volumes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Compact(slices.Sorted(maps.Values(s.volumeByName)))
}

// due reports whether it is time to look for what, a volume or the name of a mapping.
func (s *strays) due(what string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !time.Now().Before(s.missing[what].next)
}

// missed counts that what was looked for in vain, and returns how often that was so.
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

// volume returns the volume of a mapping; empty where it is not known.
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

// orphans returns how many mappings have no volume.
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
		n += max(mappings, 1) // What is no volume is the name of a mapping.
	}
	return n
}

// found forgets that a volume was looked for in vain.
func (s *strays) found(volume string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.missing, volume)
}

// fence fences what is mapped of a volume. A fence that hangs goes on, and the volume is passed
// over meanwhile.
func (d *Driver) fence(ctx context.Context, st volume.State) error {
	set, err := d.set(st)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- set.Yield(context.WithoutCancel(ctx), st.Volume) }()
	select {
	case err = <-done:
	case <-ctx.Done():
		err = ctx.Err()
	case <-time.After(fencePatience):
		err = fmt.Errorf("volume %s: what is mapped of it here is to be fenced, and its disk has "+
			"not answered for %v",
			st.Volume, fencePatience)
	}
	if errors.Is(err, volume.ErrInProgress) {
		err = nil
	}
	return err
}
