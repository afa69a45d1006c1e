package servicenode

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/kubeveil/kubeveil/internal/bpfobj"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/slots"
)

// Content is what the pinned maps of services hold, as a reader of packets finds it.
type Content struct {
	// Backends are the backends of each frontend for new flows, sorted.
	Backends map[service.FrontendKey][]netip.AddrPort
	// Draining are the numbers of the backends that only keep flows.
	Draining map[service.FrontendKey]int
}

// names of the maps in docs/design/0007-service-table.md.
const frontends, chunks = "service_fronts", "service_slots"

// Read reads the maps that are pinned in dir. Two groups that share slots are an error.
func Read(dir string) (Content, error) {
	c := Content{Backends: map[service.FrontendKey][]netip.AddrPort{},
		Draining: map[service.FrontendKey]int{}}
	all := map[service.FrontendKey]service.Frontend{}
	end := uint64(0)
	err := each(dir, frontends, func(k service.FrontendKey, f service.Frontend) bool {
		all[k] = f
		end = max(end, f.End())
		return true
	})
	if err != nil {
		return c, err
	}

	taken, err := readSlots(dir, end)
	if err != nil {
		return c, err
	}
	if uint64(len(taken)) < end {
		return c, fmt.Errorf("a frontend has slots up to %d of %d", end, len(taken))
	}

	owner := make([]uint64, end)
	for k, f := range all {
		c.Backends[k], c.Draining[k] = []netip.AddrPort{}, int(f.Draining)
		for i := uint64(f.First); i < f.End(); i++ {
			if owner[i] != 0 && owner[i] != f.Group {
				return c, fmt.Errorf("slot %d of frontend %v belongs to another group too", i,
					k.AddrPort())
			}
			owner[i] = f.Group
			if i < uint64(f.First+f.Count) {
				c.Backends[k] = append(c.Backends[k], taken[i].AddrPort())
			}
		}
		slices.SortFunc(c.Backends[k], netip.AddrPort.Compare)
	}
	return c, nil
}

// readSlots returns the first end slots.
func readSlots(dir string, end uint64) ([]service.Backend, error) {
	outer, err := ebpf.LoadPinnedMap(filepath.Join(dir, chunks), nil)
	if err != nil {
		return nil, err
	}
	defer outer.Close()
	all, err := slots.Open(outer, nil)
	if err != nil {
		return nil, err
	}
	defer all.Close()
	return all.Read(end)
}

// each calls fn with every entry of a pinned map until fn returns false.
func each[K, V any](dir, name string, fn func(K, V) bool) error {
	m, err := ebpf.LoadPinnedMap(filepath.Join(dir, name), nil)
	if err != nil {
		return err
	}
	defer m.Close()
	return bpfobj.Each(m, fn)
}
