package bpfmaps

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/kubeveil/kubeveil/internal/bpfobj"
	"github.com/kubeveil/kubeveil/pkg/service/planner"
	"github.com/kubeveil/kubeveil/pkg/service/slots"
)

// readerProgram is the program whose maps are the table in force. Of the programs that look up a
// frontend for TCP, it is attached last.
const readerProgram = "service_connect6"

// inForce opens the maps of the table that the attached programs read, by name. It returns nil if
// no program is attached, or if the programs read the maps of mine and mine is complete. For a map
// that only programs at links read, it opens the pinned map. A map that is missing or has another
// layout than in specs is left out. The caller closes the maps.
func (t *Table) inForce(mine map[string]*ebpf.Map,
	specs map[string]*ebpf.MapSpec) (map[string]*ebpf.Map, error) {
	l, err := link.LoadPinnedLink(t.Pin(readerProgram), nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}

	if err != nil {
		return nil, fmt.Errorf("open link %s: %w", readerProgram, err)
	}
	defer l.Close()
	info, err := l.Info()
	if err != nil {
		return nil, fmt.Errorf("read link %s: %w", readerProgram, err)
	}
	if at := info.Cgroup(); at == nil || at.CgroupId == 0 {
		return nil, nil // its cgroup is gone
	}

	prog, err := ebpf.NewProgramFromID(info.Program)
	if err != nil {
		return nil, fmt.Errorf("open program %s: %w", readerProgram, err)
	}
	defer prog.Close()
	found, err := mapsOf(prog)
	if err != nil {
		return nil, fmt.Errorf("program %s: %w", readerProgram, err)
	}

	if same, err := sameMap(mine[mapFrontends], found[mapFrontends]); err != nil ||
		same && len(mine) == len(tableMaps) {
		closeMaps(found)
		return nil, err
	}

	for _, name := range tableMaps {
		if found[name] == nil {
			if m, err := ebpf.LoadPinnedMap(t.Pin(name), nil); err == nil {
				found[name] = m
			}
		}
		m, spec := found[name], specs[name]
		if m != nil && (m.Type() != spec.Type || m.KeySize() != spec.KeySize ||
			m.ValueSize() != spec.ValueSize ||
			name == mapBackends && !slots.SameLayout(m, spec)) {
			m.Close()
			delete(found, name)
		}
	}

	return found, nil
}

// mapsOf opens the maps of a program that have the name of a map of the table.
func mapsOf(prog *ebpf.Program) (map[string]*ebpf.Map, error) {
	info, err := prog.Info()
	if err != nil {
		return nil, fmt.Errorf("read program: %w", err)
	}
	ids, _ := info.MapIDs()
	found := make(map[string]*ebpf.Map)
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			closeMaps(found)
			return nil, fmt.Errorf("open map %d: %w", id, err)
		}
		if name := bpfobj.MapName(m); slices.Contains(tableMaps, name) && found[name] == nil {
			found[name] = m
		} else {
			m.Close()
		}
	}
	return found, nil
}

// sameMap reports whether a and b are the same map of the kernel. It returns false if one is nil.
func sameMap(a, b *ebpf.Map) (bool, error) {
	if a == nil || b == nil {
		return false, nil
	}
	x, err := a.Info()
	if err != nil {
		return false, err
	}
	y, err := b.Info()
	if err != nil {
		return false, err
	}
	i, _ := x.ID()
	j, _ := y.ID()
	return i == j, nil
}

func closeMaps(maps map[string]*ebpf.Map) {
	for _, m := range maps {
		m.Close()
	}
}

// fill writes the content of the table in force into new maps that no program reads yet.
func (t *Table) fill(s planner.MapContent) error {
	c, without := s.Resize(t.limits)
	if without > 0 {
		t.log.Warn("the new table has no room for some addresses of services, which are not "+
			"served: raise services.limits", "addresses", without)
	}
	if err := t.Apply(c); err != nil {
		return fmt.Errorf("take over the table in force: %w", err)
	}
	return nil
}
