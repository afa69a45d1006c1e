package bpfobj

import (
	"errors"

	"github.com/cilium/ebpf"
)

// Chunk is the number of entries of a map that one system call reads at most.
const Chunk = 1 << 14

// Each calls fn with every entry of a map until fn returns false. It may miss entries that come or
// go meanwhile.
func Each[K, V any](m *ebpf.Map, fn func(K, V) bool) error {
	size := min(m.MaxEntries(), Chunk)
	keys, values := make([]K, size), make([]V, size)
	for cursor := new(ebpf.MapBatchCursor); ; {
		n, err := m.BatchLookup(cursor, keys, values, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
		for i := range n {
			if !fn(keys[i], values[i]) {
				return nil
			}
		}
		if err != nil {
			return nil // no more entries
		}
	}
}
