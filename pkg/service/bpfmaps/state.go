package bpfmaps

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/bpfobj"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/planner"
	"github.com/kubeveil/kubeveil/pkg/service/slots"
)

// State returns the content of the table, for Planner.Adopt. It reads the backends up to the last
// one that a frontend points to. Its Revision is the time since boot in nanoseconds: a table gets
// less than one revision per nanosecond, and nothing that remembers a revision outlives the boot.
func (t *Table) State() (planner.MapContent, error) {
	s, err := readState(t.maps)
	if err != nil {
		return s, err
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return s, fmt.Errorf("read the time since boot: %w", err)
	}
	s.Revision = uint64(now.Nano())
	return s, nil
}

func readState(maps map[string]*ebpf.Map) (_ planner.MapContent, err error) {
	s := planner.MapContent{Frontends: make(map[service.FrontendKey]service.Frontend)}
	end := uint64(0)
	err = errors.Join(
		each(maps, mapFrontends, func(k service.FrontendKey, v service.Frontend) bool {
			s.Frontends[k] = v
			end = max(end, v.End())
			return true
		}),
		each(maps, mapSourceRanges, func(k service.SourceRangeKey, _ uint32) bool {
			s.SourceRanges = append(s.SourceRanges, k)
			return true
		}))
	if err != nil {
		return planner.MapContent{}, err
	}

	if end == 0 {
		return s, nil
	}

	all, err := slots.Open(maps[mapBackends], nil)
	if err != nil {
		return s, fmt.Errorf("read %s: %w", mapBackends, err)
	}
	defer func() { err = errors.Join(err, all.Close()) }()
	if s.Backends, err = all.Read(end); err != nil {
		return s, fmt.Errorf("read %s: %w", mapBackends, err)
	}
	return s, nil
}

// Each calls fn with every entry of a map of the table until fn returns false. It may miss entries
// that come or go meanwhile.
func Each[K, V any](t *Table, name string, fn func(K, V) bool) error {
	return each(t.maps, name, fn)
}

func each[K, V any](maps map[string]*ebpf.Map, name string, fn func(K, V) bool) error {
	if err := bpfobj.Each(maps[name], fn); err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	return nil
}

// eachRaw calls fn with the bytes of every entry of a hash map until fn returns an error. It may
// miss entries that come or go meanwhile. Unlike a look-up it does not change the order of an LRU
// map.
func eachRaw(m *ebpf.Map, fn func(key, value []byte) error) error {
	list := func(size uint32) reflect.Value {
		return reflect.MakeSlice(reflect.SliceOf(reflect.ArrayOf(int(size),
			reflect.TypeFor[byte]())), bpfobj.Chunk, bpfobj.Chunk)
	}
	keys, values := list(m.KeySize()), list(m.ValueSize())
	for cursor := new(ebpf.MapBatchCursor); ; {
		n, err := m.BatchLookup(cursor, keys.Interface(), values.Interface(), nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
		for i := range n {
			if err := fn(keys.Index(i).Bytes(), values.Index(i).Bytes()); err != nil {
				return err
			}
		}
		if err != nil {
			return nil // no more entries
		}
	}
}
