package guard

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"

	"github.com/kubeveil/kubeveil/bpf"
	"github.com/kubeveil/kubeveil/internal/bpfobj"
	"github.com/kubeveil/kubeveil/internal/kfeature"
	"github.com/kubeveil/kubeveil/internal/tchook"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// pinnedMaps and pinnedPrograms are the names of all pins, in the order of creation.
var (
	pinnedMaps = []string{
		abi.PinDrops, abi.PinRanges, abi.PinNodes, abi.PinVIPs, abi.PinTranslate,
		abi.PinLinks, abi.PinWork, abi.PinSamples, abi.PinLimits, abi.PinShares,
	}
	pinnedPrograms = []string{
		abi.PinGuardIngress, abi.PinGuardIngressL3, abi.PinGuardEgress,
		abi.PinGuardEgressL3,
	}
)

// hooks attaches the programs to links: it is tcx or clsact.
type hooks = tchook.Hooks

var (
	tcx    = tchook.AtTCX{}
	clsact = tchook.AtClsact{Priority: abi.TCPriority, Handle: abi.TCHandle}
)

// probeHooks returns tcx if the kernel supports it (6.6), otherwise clsact.
func probeHooks() (hooks, error) {
	has, err := kfeature.TCX.Has()
	switch {
	case err != nil:
		return nil, explain(fmt.Errorf("look for tcx: %w", err))
	case has:
		return tcx, nil
	}
	return clsact, nil
}

// specs returns the compiled programs with their settings.
func specs() ([]*ebpf.CollectionSpec, error) {
	var all []*ebpf.CollectionSpec
	for _, load := range []func() (*ebpf.CollectionSpec, error){bpf.LoadGuardIngress,
		bpf.LoadGuardEgress} {
		spec, err := load()
		if err != nil {
			return nil, err
		}
		if err := bpfobj.Set(spec, map[string]any{
			"pod_mark":     uint32(abi.PodMark),
			"tunnel_mark":  uint32(abi.TunnelMark),
			"service_mark": uint32(abi.ServiceMark),
			"probe_port":   uint32(abi.ProbePort),
		}); err != nil {
			return nil, err
		}
		all = append(all, spec)
	}
	return all, nil
}

// load sets maps, progs and ids. It loads the maps first, because the programs refer to them.
func (g *Guard) load(all []*ebpf.CollectionSpec) error {
	if err := rlimit.RemoveMemlock(); err != nil {
		return explain(fmt.Errorf("raise limit of locked memory: %w", err))
	}
	g.maps = make(map[string]*ebpf.Map)
	g.progs = make(map[string]*ebpf.Program)
	g.ids = make(map[ebpf.ProgramID]string)
	for _, name := range pinnedMaps {
		m, err := g.loadMap(name, mapSpec(all, name))
		if err != nil {
			return explain(fmt.Errorf("map %s: %w", name, err))
		}
		g.maps[name] = m
	}
	for _, spec := range all {
		if err := g.loadPrograms(spec); err != nil {
			return explain(err)
		}
	}
	return nil
}

func mapSpec(all []*ebpf.CollectionSpec, name string) *ebpf.MapSpec {
	for _, spec := range all {
		if m := spec.Maps[name]; m != nil {
			return m
		}
	}
	return nil
}

// loadMap adopts the pinned map if it is compatible with spec. Otherwise it makes and pins a new
// map, and copies the entries of the old one where copyMap can.
func (g *Guard) loadMap(name string, spec *ebpf.MapSpec) (*ebpf.Map, error) {
	path := filepath.Join(g.dir, name)
	old, err := ebpf.LoadPinnedMap(path, nil)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("open pin: %w", err)
	}
	if old != nil && spec.Compatible(old) == nil {
		return old, nil
	}

	m, err := ebpf.NewMap(spec)
	if err != nil {
		if old != nil {
			old.Close()
		}
		return nil, err
	}

	if old != nil {
		defer old.Close()
		g.log.Warn("pinned map is of another version and is replaced", "map", name)
		if err := copyMap(m, old); err != nil {
			m.Close()
			return nil, err
		}
	}

	if err := bpfobj.Repin(m, path); err != nil {
		m.Close()
		return nil, err
	}

	return m, nil
}

// copyMap copies the entries of a map of another version. If the types or the sizes differ, it
// copies nothing: Apply writes the entries again, and counters begin at 0.
func copyMap(to, from *ebpf.Map) error {
	if to.KeySize() != from.KeySize() || to.ValueSize() != from.ValueSize() ||
		to.Type() != from.Type() || to.Type() == ebpf.ProgramArray || to.Type() == ebpf.RingBuf {
		return nil
	}

	const counter = 8 // bytes; a per-CPU array with other values is scratch space
	if to.Type() == ebpf.PerCPUArray && to.ValueSize() != counter {
		return nil
	}

	if to.Type() == ebpf.PerCPUArray {
		for i := range min(to.MaxEntries(), from.MaxEntries()) {
			var perCPU []uint64
			if err := from.Lookup(i, &perCPU); err != nil {
				return fmt.Errorf("read old entry: %w", err)
			}
			if err := to.Put(i, perCPU); err != nil {
				return fmt.Errorf("copy old entry: %w", err)
			}
		}
		return nil
	}

	var key, value []byte
	it := from.Iterate()
	for it.Next(&key, &value) {
		if err := to.Put(key, value); err != nil {
			return fmt.Errorf("copy old entry: %w", err)
		}
	}

	return it.Err()
}

// loadPrograms loads the programs of spec and pins them. If a pinned program is identical, it
// adopts that program instead.
func (g *Guard) loadPrograms(spec *ebpf.CollectionSpec) error {
	shared := make(map[string]*ebpf.Map)
	for name := range spec.Maps {
		if m := g.maps[name]; m != nil {
			shared[name] = m
		}
	}
	coll, err := ebpf.NewCollectionWithOptions(spec,
		ebpf.CollectionOptions{MapReplacements: shared})
	if err != nil {
		return fmt.Errorf("load programs: %w", err)
	}
	defer coll.Close()
	for name := range spec.Programs {
		prog, err := g.adoptOrPin(name, coll)
		if err != nil {
			return fmt.Errorf("program %s: %w", name, err)
		}
		g.progs[name] = prog
		id, err := bpfobj.ProgramID(prog)
		if err != nil {
			return fmt.Errorf("program %s: %w", name, err)
		}
		g.ids[id] = name
	}
	return nil
}

func (g *Guard) adoptOrPin(name string, coll *ebpf.Collection) (*ebpf.Program, error) {
	path := filepath.Join(g.dir, name)
	old, err := ebpf.LoadPinnedProgram(path, nil)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("open pin: %w", err)
	}
	if old != nil {
		same, err := bpfobj.Same(old, coll.Programs[name])
		if err == nil && same {
			return old, nil
		}
		old.Close()
		if err != nil {
			return nil, err
		}
		g.log.Info("pinned program is of another version and is replaced", "program", name)
	}
	prog := coll.DetachProgram(name)
	if err := bpfobj.Repin(prog, path); err != nil {
		prog.Close()
		return nil, err
	}
	return prog, nil
}

// explain adds a remedy to an error of bpf(2).
func explain(err error) error {
	return bpfobj.Explain(err,
		"a kernel with CONFIG_BPF_SYSCALL and CONFIG_NET_CLS_BPF, 5.10 or newer,")
}
