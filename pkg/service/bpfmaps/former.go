package bpfmaps

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/cilium/ebpf"

	"github.com/kubeveil/kubeveil/internal/bpfobj"
)

// formerPrefix is the prefix of the pins of former maps, before the number of the map.
const formerPrefix = PinPrefix + "former_"

// formerMax is the number of former maps of one name that stay pinned. Beyond it, the oldest one is
// copied a last time and its pin is removed. Programs that still write it keep it alive.
const formerMax = 4

// Hooks are where programs of a table are attached.
type Hooks int

// AttachSockets attaches programs at sockets, package link attaches those at links.
const (
	AtSockets Hooks = iota
	AtLinks
)

// former holds the maps that were replaced by maps of another size while attached programs wrote
// them. Their entries are copied:
//
//   - once in full, by Open, or by TakeOver if Open did not find the map
//   - of flow tables what is newer than that, by CopyNewer, while the programs are replaced
//   - once more by Replaced: what is newer of flow tables, all of other maps
//
// Then no program writes them, and their pins are removed. A process that is killed earlier leaves
// the pins, and the next one copies again.
type former struct {
	sync.Mutex // held while entries are copied
	maps       []formerMap
	replaced   map[Hooks]bool // where all programs are of this table
}

type formerMap struct {
	*ebpf.Map
	id   ebpf.MapID
	name string
	// since is when the last copy began, in seconds of CLOCK_MONOTONIC. 0 means that no entry was
	// copied yet.
	since uint32
}

// writersOf returns where the programs are attached that write a map.
func (t *Table) writersOf(name string) []Hooks {
	switch {
	case name == mapReplies || name == mapSends || !t.links:
		return []Hooks{AtSockets}
	case name == mapAffinity:
		return []Hooks{AtSockets, AtLinks}
	}
	return []Hooks{AtLinks}
}

// keepFormer pins a map that programs may write, and adds it to the former maps. It takes m over.
func (t *Table) keepFormer(m *ebpf.Map) error {
	info, err := m.Info()
	if err != nil {
		return errors.Join(err, m.Close())
	}
	f := formerMap{Map: m, name: info.Name}
	f.id, _ = info.ID()
	if err := bpfobj.Repin(m, f.pin(t)); err != nil {
		return errors.Join(fmt.Errorf("keep map %s of another size: %w", f.name, err), m.Close())
	}
	t.former.maps = append(t.former.maps, f)
	return nil
}

// keepPinned keeps the pinned map of another size, if its entries can be copied to one of spec.
func (t *Table) keepPinned(name string, spec *ebpf.MapSpec) error {
	m, err := ebpf.LoadPinnedMap(t.Pin(name), nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("map %s: open pin: %w", name, err)
	}
	if !slices.Contains(memoryMaps, name) || m.Type() != spec.Type ||
		m.KeySize() != spec.KeySize || m.ValueSize() != spec.ValueSize {
		return m.Close()
	}
	return t.keepFormer(m)
}

func (f formerMap) pin(t *Table) string { return t.Pin(fmt.Sprint(formerPrefix, f.id)) }

func (f formerMap) drop(t *Table) error {
	return errors.Join(os.Remove(f.pin(t)), f.Close())
}

// fits reports whether the entries of a map can be copied to the map of that name.
func (t *Table) fits(m *ebpf.Map) bool {
	name := bpfobj.MapName(m)
	to := t.maps[name]
	return to != nil && slices.Contains(memoryMaps, name) && to.Type() == m.Type() &&
		to.KeySize() == m.KeySize() && to.ValueSize() == m.ValueSize()
}

// openFormer opens the former maps that are pinned, of this and of earlier processes, and copies
// them. Pins of maps that the table does not have stay.
func (t *Table) openFormer() error {
	pins, err := filepath.Glob(t.Pin(formerPrefix + "*"))
	if err != nil {
		return err
	}
	for _, pin := range pins {
		if strings.HasSuffix(pin, bpfobj.NextSuffix) || t.hasFormer(pin) {
			continue
		}
		m, err := ebpf.LoadPinnedMap(pin, nil)
		if err != nil {
			return fmt.Errorf("open former map: %w", err)
		}
		switch {
		case t.maps[bpfobj.MapName(m)] == nil:
			err = m.Close()
		case !t.fits(m):
			err = errors.Join(os.Remove(pin), m.Close())
		default:
			err = t.keepFormer(m)
		}
		if err != nil {
			return fmt.Errorf("former map %s: %w", filepath.Base(pin), err)
		}
	}

	if err := t.copyFormer(func(formerMap) bool { return true }); err != nil {
		return err
	}
	return t.boundFormer()
}

func (t *Table) hasFormer(pin string) bool {
	return slices.ContainsFunc(t.former.maps, func(f formerMap) bool { return f.pin(t) == pin })
}

// boundFormer drops the oldest former maps of a name that has more than formerMax.
func (t *Table) boundFormer() error {
	slices.SortFunc(t.former.maps, func(a, b formerMap) int { return int(b.id) - int(a.id) })
	count := make(map[string]int)
	var errs []error
	t.former.maps = slices.DeleteFunc(t.former.maps, func(f formerMap) bool {
		if count[f.name]++; count[f.name] <= formerMax {
			return false
		}
		t.log.Warn("an old map of services is not kept any more, although programs at links may "+
			"write it: flows that begin at these links may be lost", "map", f.name)
		errs = append(errs, f.drop(t))
		return true
	})
	return errors.Join(errs...)
}

// copyFormer copies entries of the former maps to ours of the same name: of the maps for which
// which returns true. An entry of ours stays, unless it is a flow that a replaced program wrote
// later: supersedes. Of a flow table that was copied before, it copies only the flows that were
// used since then.
func (t *Table) copyFormer(which func(formerMap) bool) error {
	for i := range t.former.maps {
		f := &t.former.maps[i]
		if !which(*f) {
			continue
		}
		if err := t.copyOne(f); err != nil {
			return fmt.Errorf("copy map %s of another size: %w", f.name, err)
		}
	}
	return nil
}

func (t *Table) copyOne(f *formerMap) error {
	now := Now()
	var copied int
	var err error
	if f.isFlows() {
		copied, err = copyFlows(f, t.maps[f.name], now)
	} else {
		copied, err = copyMissing(f.Map, t.maps[f.name])
	}
	if err != nil {
		return err
	}
	t.log.Debug("entries copied from a map of services of another size", "map", f.name,
		"entries", copied, "all", f.since == 0 || !f.isFlows())
	f.since = now
	return nil
}

// copyMissing copies the entries that the other map lacks, and returns their number.
func copyMissing(from, to *ebpf.Map) (copied int, err error) {
	err = eachRaw(from, func(key, value []byte) error {
		err := to.Update(key, value, ebpf.UpdateNoExist)
		if errors.Is(err, ebpf.ErrKeyExist) {
			return nil
		}
		copied++
		return err
	})
	return copied, err
}

func (f formerMap) isFlows() bool {
	return slices.Contains([]string{MapTCP, MapOpening, MapUDP}, f.name)
}

// TakeOver prepares the replacement of an attached program: it copies the maps of the program that
// Open did not find. It copies each map once, not once for each program.
func (t *Table) TakeOver(old *ebpf.Program) error {
	info, err := old.Info()
	if err != nil {
		return fmt.Errorf("read program: %w", err)
	}
	t.former.Lock()
	defer t.former.Unlock()
	ids, _ := info.MapIDs()
	for _, id := range ids {
		if err := t.takeOverMap(id); err != nil {
			return fmt.Errorf("take over map %d: %w", id, err)
		}
	}
	return nil
}

func (t *Table) takeOverMap(id ebpf.MapID) error {
	if slices.ContainsFunc(t.former.maps, func(f formerMap) bool { return f.id == id }) {
		return nil
	}
	m, err := ebpf.NewMapFromID(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	own, err := sameMap(m, t.maps[bpfobj.MapName(m)])
	if err != nil || own || !t.fits(m) {
		return errors.Join(err, m.Close())
	}
	if err := t.keepFormer(m); err != nil {
		return err
	}
	return t.copyFormer(func(f formerMap) bool { return f.id == id })
}

// CopyNewer copies the flows that began, or went on, at programs of former maps since the last
// copy. It walks through these maps, but copies little.
func (t *Table) CopyNewer() error {
	t.former.Lock()
	defer t.former.Unlock()
	return t.copyFormer(formerMap.isFlows)
}

// copyFor copies the former maps that programs at these hooks write.
func (t *Table) copyFor(at Hooks) error {
	t.former.Lock()
	defer t.former.Unlock()
	return t.copyFormer(func(f formerMap) bool {
		return slices.Contains(t.writersOf(f.name), at)
	})
}

// Replaced records that all programs at these hooks are of this table. It copies the former maps
// that no program writes any more a last time, and drops them.
func (t *Table) Replaced(at Hooks) error {
	t.former.Lock()
	defer t.former.Unlock()
	t.former.replaced[at] = true
	unused := func(f formerMap) bool {
		return !slices.ContainsFunc(t.writersOf(f.name),
			func(h Hooks) bool { return !t.former.replaced[h] })
	}
	if err := t.copyFormer(unused); err != nil {
		return err
	}

	var errs []error
	t.former.maps = slices.DeleteFunc(t.former.maps, func(f formerMap) bool {
		if unused(f) {
			errs = append(errs, f.drop(t))
		}
		return unused(f)
	})
	return errors.Join(errs...)
}
