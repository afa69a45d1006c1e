package pod

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/kubeveil/kubeveil/pkg/config"
)

// Flags in a pod_addrs entry; see config.PinPodAddrs.
const (
	flag4 uint32 = 1
	flag6 uint32 = 2
)

// addrsEntry is the value of a pod_addrs entry, in the layout of config.PinPodAddrs.
type addrsEntry [24]byte

func entryOf(addrs []netip.Addr) addrsEntry {
	var e addrsEntry
	var flags uint32
	for _, a := range addrs {
		if a.Is4() {
			flags |= flag4
			b := a.As4()
			copy(e[4:8], b[:])
		} else {
			flags |= flag6
			b := a.As16()
			copy(e[8:24], b[:])
		}
	}
	binary.NativeEndian.PutUint32(e[0:4], flags)
	return e
}

func (p Paths) openAddrs() (*ebpf.Map, error) {
	m, err := ebpf.LoadPinnedMap(p.pin(config.PinPodAddrs), nil)
	if err != nil {
		return nil, fmt.Errorf("open pinned map %s: %w", p.pin(config.PinPodAddrs), err)
	}
	if m.KeySize() != 4 || m.ValueSize() != uint32(len(addrsEntry{})) {
		m.Close()
		return nil, fmt.Errorf("pinned map %s has keys of %d and values of %d bytes, want 4 and %d: it is another version's, restart veild",
			p.pin(config.PinPodAddrs), m.KeySize(), m.ValueSize(), len(addrsEntry{}))
	}
	return m, nil
}

// setAddrs writes the entry of a link, replacing what is there.
func (p Paths) setAddrs(index int, addrs []netip.Addr) error {
	m, err := p.openAddrs()
	if err != nil {
		return err
	}
	defer m.Close()
	e := entryOf(addrs)
	if err := m.Update(uint32(index), e[:], ebpf.UpdateAny); err != nil {
		return fmt.Errorf("write %s entry of link %d: %w", config.PinPodAddrs, index, err)
	}
	return nil
}

// hasAddrs is whether the entry of a link is there and exactly this.
func (p Paths) hasAddrs(index int, addrs []netip.Addr) (bool, error) {
	m, err := p.openAddrs()
	if err != nil {
		return false, err
	}
	defer m.Close()
	var got addrsEntry
	if err := m.Lookup(uint32(index), got[:]); err != nil {
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return false, nil
		}
		return false, fmt.Errorf("read %s entry of link %d: %w", config.PinPodAddrs, index, err)
	}
	return got == entryOf(addrs), nil
}

// deleteAddrs removes the entries for which drop says so; a map that does not
// exist has none.
func (p Paths) deleteAddrs(drop func(index int, e addrsEntry) bool) (int, error) {
	m, err := p.openAddrs()
	if errors.Is(err, ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer m.Close()
	var index uint32
	var value []byte
	var stale []uint32
	for it := m.Iterate(); it.Next(&index, &value); {
		var e addrsEntry
		copy(e[:], value)
		if drop(int(index), e) {
			stale = append(stale, index)
		}
	}
	var errs []error
	for _, index := range stale {
		if err := m.Delete(index); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, fmt.Errorf("remove %s entry of link %d: %w", config.PinPodAddrs, index, err))
		}
	}
	return len(stale), errors.Join(errs...)
}

// unsetAddrs removes the entry of one link.
func (p Paths) unsetAddrs(index int) error {
	m, err := p.openAddrs()
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	defer m.Close()
	if err := m.Delete(uint32(index)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("remove %s entry of link %d: %w", config.PinPodAddrs, index, err)
	}
	return nil
}
