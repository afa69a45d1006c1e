package bpfmaps

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"

	"github.com/kubeveil/kubeveil/internal/bpfobj"
	"github.com/kubeveil/kubeveil/pkg/service/planner"
	"github.com/kubeveil/kubeveil/pkg/service/probe"
	"github.com/kubeveil/kubeveil/pkg/service/slots"
)

// Names of maps, which are also the names of their pins. The names of programs are the pins of
// their links.
const (
	mapFrontends    = "service_fronts"
	mapBackends     = "service_slots"
	mapSourceRanges = "service_sources"
	mapAffinity     = "service_clients"
	mapOutside      = "service_outside"
	mapSockets      = "service_sockets"
	mapReplies      = "service_replies"
	mapSends        = "service_sends"
	mapCounts       = "service_counts"
)

// Names of the maps that programs at links write.
const (
	// MapTCP, MapOpening and MapUDP are the flow tables: established connections, opening ones,
	// and flows of UDP.
	MapTCP     = "service_tcp"
	MapOpening = "service_opening"
	MapUDP     = "service_udp"
	// MapQuotas holds the flows of each client in the cluster.
	MapQuotas = "service_quotas"
	// MapPodClients is the set of PodClient.
	MapPodClients = "service_callers"
	// MapPodClientShares holds the number of PodClients by the index of their link.
	MapPodClientShares = "service_shares"
)

// PinPrefix is the prefix of the name of every pin of the table.
const PinPrefix = "service_"

var (
	// tableMaps are the maps that the planner writes. They refer to each other.
	tableMaps = []string{mapFrontends, mapBackends, mapSourceRanges}
	// memoryMaps are the maps that programs write and whose entries a map of another size gets.
	// Each can be adopted without the others.
	memoryMaps = []string{mapAffinity, mapOutside, mapReplies, mapSends, MapTCP, MapOpening, MapUDP,
		MapPodClients, MapPodClientShares}
	// formerPins are maps of the last release (lastRelease of e2e/node/network) that no program
	// uses any more, and which hold kernel memory.
	formerPins = []string{"service_flows", "service_turned", "service_members"}
)

// dropQuotas removes the pin of MapQuotas if its slots have the numbers of another quota than that
// of m. The new map is empty: each flow takes a slot again in the second of its next packet. The
// quota follows from the sizes of the pinned flow tables. So call it before these change.
func (t *Table) dropQuotas(m Memory) error {
	var pinned Memory
	for name, size := range map[string]*uint32{MapTCP: &pinned.TCP, MapOpening: &pinned.Opening,
		MapUDP: &pinned.UDP} {
		table, err := ebpf.LoadPinnedMap(t.Pin(name), nil)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("map %s: open pin: %w", name, err)
		}
		*size = table.MaxEntries()
		table.Close()
	}

	if pinned.quota() == m.quota() {
		return nil
	}
	if err := os.Remove(t.Pin(MapQuotas)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove pin of map %s: %w", MapQuotas, err)
	}
	return nil
}

// load opens the maps and loads the programs. Maps come first, since programs refer to them.
func (t *Table) load(all []*ebpf.CollectionSpec, c Config) error {
	if err := rlimit.RemoveMemlock(); err != nil {
		return probe.Explain(fmt.Errorf("raise limit of locked memory: %w", err))
	}

	pinned := make(map[string]*ebpf.MapSpec)
	for _, spec := range all {
		for name, m := range spec.Maps {
			if size, ok := c.sizes()[name]; ok {
				m.MaxEntries = size
			}
			if name == mapBackends {
				slots.Resize(m, c.Limits.BackendSlots)
			}
			if strings.HasPrefix(name, PinPrefix) {
				pinned[name] = m
			}
		}
	}

	if err := t.loadTable(pinned); err != nil {
		return probe.Explain(err)
	}

	for _, name := range formerPins {
		if err := os.Remove(t.Pin(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove pin of an earlier version: %w", err)
		}
	}
	if err := t.dropQuotas(c.Memory); err != nil {
		return probe.Explain(err)
	}
	for name, spec := range pinned {
		if slices.Contains(tableMaps, name) {
			continue
		}
		if err := t.loadMap(name, spec); err != nil {
			return probe.Explain(err)
		}
	}
	if err := t.openFormer(); err != nil {
		return probe.Explain(err)
	}

	for _, spec := range all {
		if err := t.loadPrograms(spec); err != nil {
			return probe.Explain(err)
		}
	}

	return nil
}

// loadTable adopts the maps of the table if all are pinned and fit, and the attached programs read
// them. Otherwise it creates new maps with the content of those in force. All old pins are removed
// before the first new pin is made. So a process that dies meanwhile leaves an incomplete table,
// never a mixture of two tables. The attached programs still read the old maps.
func (t *Table) loadTable(specs map[string]*ebpf.MapSpec) error {
	for _, name := range tableMaps {
		m, err := t.adopt(name, specs[name])
		if err != nil {
			return err
		}
		if m != nil {
			t.maps[name] = m
		}
	}
	old, err := t.inForce(t.maps, specs)
	if err != nil {
		return err
	}
	defer closeMaps(old)
	if len(t.maps) == len(tableMaps) && old == nil {
		return t.openSlots(specs)
	}
	var state planner.MapContent
	if t.fresh = old != nil && len(old) < len(tableMaps); old != nil && !t.fresh {
		if state, err = readState(old); err != nil {
			return fmt.Errorf("table in force: %w", err)
		}
	}
	return t.remakeTable(specs, state)
}

// remakeTable replaces the pinned maps by new maps with this content.
func (t *Table) remakeTable(specs map[string]*ebpf.MapSpec, content planner.MapContent) error {
	for _, name := range tableMaps {
		if m := t.maps[name]; m != nil {
			m.Close()
		}
		m, err := newMap(name, specs[name])
		if err != nil {
			return err
		}
		t.maps[name] = m
	}

	if err := t.openSlots(specs); err != nil {
		return err
	}
	if err := t.fill(content); err != nil {
		return err
	}
	for _, name := range tableMaps {
		if err := os.Remove(t.Pin(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove pin of an earlier table: %w", err)
		}
	}
	for _, name := range tableMaps {
		if err := bpfobj.Repin(t.maps[name], t.Pin(name)); err != nil {
			return fmt.Errorf("map %s: %w", name, err)
		}
	}
	return nil
}

func (t *Table) openSlots(specs map[string]*ebpf.MapSpec) (err error) {
	t.slots, err = slots.Open(t.maps[mapBackends], specs[mapBackends])
	if err != nil {
		return fmt.Errorf("map %s: %w", mapBackends, err)
	}
	return nil
}

// loadMap adopts the pinned map or creates a new one in its place.
func (t *Table) loadMap(name string, spec *ebpf.MapSpec) error {
	m, err := t.adopt(name, spec)
	if err != nil {
		return err
	}
	if m != nil {
		t.maps[name] = m
		return nil
	}
	if err := t.keepPinned(name, spec); err != nil {
		return err
	}
	if m, err = newMap(name, spec); err != nil {
		return err
	}
	t.maps[name] = m
	if name == MapPodClients {
		// The map is filled before it is pinned, because a pinned map counts as complete.
		if err := t.assumePodClients(); err != nil {
			return err
		}
	}
	if err := bpfobj.Repin(m, t.Pin(name)); err != nil {
		return fmt.Errorf("map %s: %w", name, err)
	}
	return nil
}

// adopt opens the pinned map. It returns nil if no map is pinned, or if the pinned map has another
// size or layout.
func (t *Table) adopt(name string, spec *ebpf.MapSpec) (*ebpf.Map, error) {
	m, err := ebpf.LoadPinnedMap(t.Pin(name), nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("map %s: open pin: %w", name, err)
	}
	err = spec.Compatible(m)
	if err == nil && name == mapBackends {
		err = slots.Fits(m, spec)
	}
	if err != nil {
		t.log.Warn("a pinned map of services has another size or version and is replaced",
			"map", name, "why", err.Error())
		m.Close()
		return nil, nil
	}
	return m, nil
}

func newMap(name string, spec *ebpf.MapSpec) (*ebpf.Map, error) {
	create := ebpf.NewMap
	if name == mapBackends {
		create = slots.Make
	}
	m, err := create(spec)
	if err != nil {
		return nil, fmt.Errorf("make map %s of %d entries: %w", name, spec.MaxEntries, err)
	}
	return m, nil
}

// loadPrograms loads the programs of spec with the maps of the table and the guard. The programs
// are not pinned themselves; their links are.
func (t *Table) loadPrograms(spec *ebpf.CollectionSpec) error {
	shared := make(map[string]*ebpf.Map)
	for name := range spec.Maps {
		if strings.HasPrefix(name, ".") {
			continue // settings of the program
		}
		if err := t.openGuardMap(name); err != nil {
			return err
		}
		shared[name] = t.maps[name]
	}
	coll, err := ebpf.NewCollectionWithOptions(spec,
		ebpf.CollectionOptions{MapReplacements: shared})
	if err != nil {
		return fmt.Errorf("load programs: %w", err)
	}
	defer coll.Close()
	for name := range spec.Programs {
		t.progs[name] = coll.DetachProgram(name)
	}
	return nil
}

func (t *Table) openGuardMap(name string) error {
	if t.maps[name] != nil {
		return nil
	}
	m, err := ebpf.LoadPinnedMap(t.Pin(name), nil)
	if err != nil {
		return fmt.Errorf("open the guard's map %s (the guard must be open first): %w", name, err)
	}
	t.maps[name] = m
	return nil
}

// Pin returns the path of a pin of the table or of the guard.
func (t *Table) Pin(name string) string { return filepath.Join(t.dir, name) }
