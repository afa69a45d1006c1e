package guard

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/kubeveil/kubeveil/internal/bpfobj"
	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/internal/tchook"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/guard/chains"
)

func (g *Guard) read(h *nl.Handle) (*Kernel, error) {
	links, err := h.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	s, err := g.readLinks(h, links)
	if err != nil {
		return nil, err
	}
	if s.Ranges, err = readRanges(g.maps[abi.PinRanges]); err != nil {
		return nil, fmt.Errorf("read map %s: %w", abi.PinRanges, err)
	}
	for pin, addrs := range map[string]*[]netip.Addr{abi.PinNodes: &s.Nodes,
		abi.PinVIPs: &s.VIPs} {
		if *addrs, err = readAddrs(g.maps[pin]); err != nil {
			return nil, fmt.Errorf("read map %s: %w", pin, err)
		}
	}
	tables, err := nft.ReadAll(chains.Largest(), chains.Pods())
	if err != nil {
		return nil, err
	}
	s.Table, s.Pods = tables[0], tables[1]
	return s, nil
}

// readLinks reads the attachments of links. Deleted links are left out. If the attachments of a
// link cannot be read, Err of that link is set.
func (g *Guard) readLinks(h *nl.Handle, links []nl.Link) (*Kernel, error) {
	marked, err := readMarked(g.maps[abi.PinLinks])
	if err != nil {
		return nil, fmt.Errorf("read map %s: %w", abi.PinLinks, err)
	}
	s := &Kernel{Points: make(map[Point]Attached), Marked: marked}
	finder := finder{current: g.ids}
	for _, l := range links {
		view := linkOf(l)
		points, err := finder.link(h, g.hooks, view)
		if errors.Is(err, tchook.ErrLinkGone) {
			continue
		}
		if err != nil {
			view.Err = fmt.Errorf("list its programs: %w", err)
		}
		s.Links = append(s.Links, view)
		for p, a := range points {
			s.Points[p] = a
		}
	}
	return s, nil
}

// finder distinguishes our programs from foreign ones.
type finder struct {
	current map[ebpf.ProgramID]string
	seen    map[ebpf.ProgramID]Program // results of find for other programs
	qdiscs  tchook.Places
}

func (f *finder) link(h *nl.Handle, hooks hooks, l Link) (map[Point]Attached, error) {
	points := make(map[Point]Attached)
	for _, hook := range []Hook{Ingress, Egress} {
		p := Point{l.Index, hook}
		ids, err := hooks.List(h, &f.qdiscs, l.Index, hook)
		if err != nil {
			return nil, err
		}
		var a Attached
		for i, id := range ids {
			prog, err := f.find(id)
			if err != nil {
				return nil, err
			}
			if prog.Pin != "" {
				a.First = a.First || i == len(a.Ours)
				a.Ours = append(a.Ours, prog)
			}
		}
		points[p] = a
	}
	return points, nil
}

// find returns the program with this ID. Pin of a foreign program is "".
func (f *finder) find(id ebpf.ProgramID) (Program, error) {
	if pin, ok := f.current[id]; ok {
		return Program{ID: id, Pin: pin, Current: true}, nil
	}
	if p, ok := f.seen[id]; ok || id == 0 {
		return p, nil
	}
	pin, err := pinOf(id)
	if err != nil {
		return Program{}, fmt.Errorf("look at program %d: %w", id, err)
	}
	if f.seen == nil {
		f.seen = make(map[ebpf.ProgramID]Program)
	}
	f.seen[id] = Program{ID: id, Pin: pin}
	return f.seen[id], nil
}

// progNameLen is the number of bytes of a program's name that the kernel keeps (BPF_OBJ_NAME_LEN
// without the final zero).
const progNameLen = 15

// pinOf returns the name of the pin of a program of an earlier version. Such a program has the name
// of a pin and uses the map PinDrops. For a foreign program, or a program that no longer exists,
// pinOf returns "".
func pinOf(id ebpf.ProgramID) (string, error) {
	prog, err := ebpf.NewProgramFromID(id)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}

	if err != nil {
		return "", err
	}
	defer prog.Close()
	info, err := prog.Info()
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(pinnedPrograms, func(pin string) bool {
		return pin[:min(len(pin), progNameLen)] == info.Name
	})
	if i < 0 || info.Type != ebpf.SchedCLS {
		return "", nil
	}

	maps, _ := info.MapIDs()
	for _, mapID := range maps {
		m, err := ebpf.NewMapFromID(mapID)
		if err != nil {
			return "", err
		}
		name := bpfobj.MapName(m)
		m.Close()
		if name == abi.PinDrops {
			return pinnedPrograms[i], nil
		}
	}

	return "", nil
}

// rangeKey is struct range_key of bpf/lib/guard/ranges.h.
type rangeKey struct {
	PrefixLen uint32
	Addr      [16]byte
}

const mappedBits = 96 // length of ::ffff:0:0/96, which maps IPv4 addresses

func keyOf(p netip.Prefix) rangeKey {
	bits := p.Bits()
	if p.Addr().Is4() {
		bits += mappedBits
	}
	return rangeKey{uint32(bits), p.Addr().As16()}
}

func (k rangeKey) prefix() netip.Prefix {
	addr := netip.AddrFrom16(k.Addr)
	if addr.Is4In6() && k.PrefixLen >= mappedBits {
		return netip.PrefixFrom(addr.Unmap(), int(k.PrefixLen)-mappedBits)
	}
	return netip.PrefixFrom(addr, int(k.PrefixLen))
}

// Ranges returns the ranges of the guard pinned in dir, or no ranges if there is no guard.
func Ranges(dir string) ([]netip.Prefix, error) {
	m, err := ebpf.LoadPinnedMap(filepath.Join(dir, abi.PinRanges),
		&ebpf.LoadPinOptions{ReadOnly: true})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read ranges of the guard: %w", err)
	}
	defer m.Close()
	return readRanges(m)
}

func readRanges(m *ebpf.Map) ([]netip.Prefix, error) {
	var all []netip.Prefix
	var key rangeKey
	var value uint8
	it := m.Iterate()
	for it.Next(&key, &value) {
		all = append(all, key.prefix())
	}
	slices.SortFunc(all, comparePrefix)
	return all, it.Err()
}

// readAddrs reads a set of addresses.
func readAddrs(m *ebpf.Map) (all []netip.Addr, err error) {
	err = bpfobj.Each(m, func(key [16]byte, _ uint8) bool {
		all = append(all, netip.AddrFrom16(key).Unmap())
		return true
	})
	slices.SortFunc(all, netip.Addr.Compare)
	return all, err
}

// readMarked reads the indices of guarded links.
func readMarked(m *ebpf.Map) (map[int]bool, error) {
	marked := make(map[int]bool)
	var index uint32
	var value uint8
	it := m.Iterate()
	for it.Next(&index, &value) {
		marked[int(index)] = true
	}
	return marked, it.Err()
}

func readCounter(maps map[string]*ebpf.Map, reason uint32) ([]uint64, error) {
	var perCPU []uint64
	err := maps[abi.PinDrops].Lookup(reason, &perCPU)
	return perCPU, err
}

func opRange(p netip.Prefix, add bool) Op {
	return Op{verb(add) + " range " + p.String(), abi.PinRanges,
		func(g *Guard, _ *nl.Handle) error {
			return set(g.maps[abi.PinRanges], keyOf(p), add)
		}}
}

// member is the scope of the changes of one address in a set. An address that cannot be added holds
// up no other.
type member struct {
	pin  string
	addr netip.Addr
}

func (s addrSet) op(a netip.Addr, add bool) Op {
	return Op{verb(add) + " " + s.what + " " + a.String(), member{s.pin, a},
		func(g *Guard, _ *nl.Handle) error {
			return set(g.maps[s.pin], a.As16(), add)
		}}
}

func verb(add bool) string {
	if add {
		return "add"
	}
	return "remove"
}

// set adds key to the set m, or removes key if add is false.
func set(m *ebpf.Map, key any, add bool) error {
	if add {
		return m.Put(key, uint8(1))
	}
	if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	return nil
}
