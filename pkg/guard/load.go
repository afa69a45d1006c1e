package guard

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/bpf"
	"github.com/kubeveil/kubeveil/pkg/config"
)

// nextSuffix ends the pin of what is about to replace the pin without it (bpffs
// refuses names with dots).
const nextSuffix = "_next"

// pinnedMaps and pinnedPrograms are everything that is pinned, in the order in which it is made.
var (
	pinnedMaps     = []string{config.PinDrops, config.PinRanges, config.PinNodes}
	pinnedPrograms = []string{
		config.PinGuardIngress, config.PinGuardIngressL3, config.PinGuardEgress, config.PinGuardEgressL3,
	}
	// retiredPins are what earlier versions pinned; Open and Remove delete them. What an
	// earlier version attached to a pod's link goes with the link, and marks it as the rules do.
	retiredPins = []string{"pod_ingress", "pod_addrs"}
)

// makeDir makes dir if its nearest existing parent is on a bpffs.
func makeDir(dir string) error {
	at := filepath.Clean(dir)
	var st unix.Statfs_t
	for {
		err := unix.Statfs(at, &st)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) || at == filepath.Dir(at) {
			return fmt.Errorf("look at %s: %w", at, err)
		}
		at = filepath.Dir(at)
	}
	if st.Type != unix.BPF_FS_MAGIC {
		return fmt.Errorf("%s: %w: mount one with: mount -t bpf bpf /sys/fs/bpf", dir, ErrNoBPFFS)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make directory for pins: %w", err)
	}
	return nil
}

// specs gives the compiled programs, with the settings in them.
func specs() ([]*ebpf.CollectionSpec, error) {
	var all []*ebpf.CollectionSpec
	for _, load := range []func() (*ebpf.CollectionSpec, error){bpf.LoadGuardIngress, bpf.LoadGuardEgress} {
		spec, err := load()
		if err != nil {
			return nil, err
		}
		for name, value := range map[string]uint32{"pod_mark": config.PodMark, "probe_port": config.ProbePort} {
			if v := spec.Variables[name]; v != nil {
				if err := v.Set(value); err != nil {
					return nil, fmt.Errorf("set %s: %w", name, err)
				}
			}
		}
		all = append(all, spec)
	}
	return all, nil
}

// load fills maps, progs and ids. Maps come first: programs refer to them.
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
	for _, name := range retiredPins {
		if err := os.Remove(filepath.Join(g.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove pin of an earlier version: %w", err)
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

// loadMap adopts the pinned map, or makes and pins a new one, with the content
// of the pinned one where its layout has changed.
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
	if err := repin(m, path); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// copyMap takes over the entries of a map of another version. What cannot be
// taken over is lost: Apply writes it again, or it is a count.
func copyMap(to, from *ebpf.Map) error {
	if to.KeySize() != from.KeySize() || to.ValueSize() != from.ValueSize() || to.Type() != from.Type() {
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

func mapName(m *ebpf.Map) string {
	info, err := m.Info()
	if err != nil {
		return ""
	}
	return info.Name
}

// loadPrograms loads the programs of spec and adopts instead those pinned ones
// that are the same.
func (g *Guard) loadPrograms(spec *ebpf.CollectionSpec) error {
	shared := make(map[string]*ebpf.Map)
	for name := range spec.Maps {
		if m := g.maps[name]; m != nil {
			shared[name] = m
		}
	}
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: shared})
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
		id, err := programID(prog)
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
		same, err := sameProgram(old, coll.Programs[name])
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
	if err := repin(prog, path); err != nil {
		prog.Close()
		return nil, err
	}
	return prog, nil
}

// sameProgram is whether two loaded programs have the same instructions, maps
// and settings. The kernel's tag covers only the first.
func sameProgram(a, b *ebpf.Program) (bool, error) {
	x, err := identify(a)
	if err != nil {
		return false, err
	}
	y, err := identify(b)
	if err != nil {
		return false, err
	}
	return x.tag == y.tag && slices.Equal(x.maps, y.maps) && bytes.Equal(x.rodata, y.rodata), nil
}

type identity struct {
	tag    string
	maps   []ebpf.MapID // sorted, without that of the settings
	rodata []byte
}

func identify(p *ebpf.Program) (identity, error) {
	info, err := p.Info()
	if err != nil {
		return identity{}, err
	}
	id := identity{tag: info.Tag}
	maps, _ := info.MapIDs()
	for _, mapID := range maps {
		m, err := ebpf.NewMapFromID(mapID)
		if err != nil {
			return identity{}, fmt.Errorf("open map %d: %w", mapID, err)
		}
		if !strings.HasSuffix(mapName(m), ".rodata") {
			id.maps = append(id.maps, mapID)
		} else if id.rodata, err = m.LookupBytes(uint32(0)); err != nil {
			m.Close()
			return identity{}, fmt.Errorf("read settings: %w", err)
		}
		m.Close()
	}
	slices.Sort(id.maps)
	return id, nil
}

func programID(p *ebpf.Program) (ebpf.ProgramID, error) {
	info, err := p.Info()
	if err != nil {
		return 0, err
	}
	id, ok := info.ID()
	if !ok {
		return 0, fmt.Errorf("program has no id: %w", ErrNotSupported)
	}
	return id, nil
}

// repin pins an object at path; what is there is replaced without a moment in
// which nothing is.
func repin(obj interface{ Pin(string) error }, path string) error {
	next := path + nextSuffix
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove left-over pin: %w", err)
	}
	if err := obj.Pin(next); err != nil {
		return fmt.Errorf("pin: %w", err)
	}
	if err := os.Rename(next, path); err != nil {
		return fmt.Errorf("pin: %w", err)
	}
	return nil
}

// explain adds to an error of the kernel what to do about it.
func explain(err error) error {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w: %w: run as root with CAP_BPF, CAP_NET_ADMIN, CAP_SYS_ADMIN and CAP_PERFMON, outside a sandbox that filters bpf(2)", ErrNotPermitted, err)
	case errors.Is(err, unix.ENOSYS), errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Errorf("%w: %w: a kernel with CONFIG_BPF_SYSCALL and CONFIG_NET_CLS_BPF is needed, 5.10 or newer", ErrNotSupported, err)
	}
	return err
}
