package bpfmaps

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/service"
)

// WriteError is the error of a step of Apply that ended early. The steps before it are done; the
// steps after it are not.
type WriteError struct {
	// Map is the map's name, and Step the operation on it.
	Map, Step string
	// Done of Of entries are written.
	Done, Of int
	Err      error
}

func (e *WriteError) Error() string {
	return fmt.Sprintf("%s %s: %d of %d entries: %v", e.Step, e.Map, e.Done, e.Of, e.Err)
}

// Unwrap returns the kernel's error, and service.ErrFull if it means a full map.
func (e *WriteError) Unwrap() []error {
	if errors.Is(e.Err, unix.E2BIG) || errors.Is(e.Err, unix.ENOSPC) { // hash maps, tries
		return []error{e.Err, service.ErrFull}
	}
	return []error{e.Err}
}

// write is one step of Apply.
type write struct {
	mapName, step string
	entries       int
	do            func(*ebpf.Map) (int, error)
}

// Apply writes the changes, step by step: slots through a mapping, all else in calls of batchSize
// entries. An error is a *WriteError. Then State returns the content of the maps, for
// Planner.Adopt.
func (t *Table) Apply(c service.Changes) error {
	if done, err := t.slots.Write(c.Runs, c.Room); err != nil {
		return &WriteError{mapBackends, "write", done, c.Slots(), err}
	}
	for _, w := range writes(c) {
		if w.entries == 0 {
			continue
		}
		if done, err := w.do(t.maps[w.mapName]); err != nil {
			return &WriteError{w.mapName, w.step, done, w.entries, err}
		}
	}
	if err := t.slots.Release(c.UnusedChunks); err != nil {
		return &WriteError{mapBackends, "release chunks of", 0, len(c.UnusedChunks), err}
	}
	return nil
}

// writes returns the steps after the slots, in the order that service.Changes requires.
func writes(c service.Changes) []write {
	sources := service.Batch[service.SourceRangeKey, uint32]{Keys: c.SourceRanges,
		Values: make([]uint32, len(c.SourceRanges))}
	for i := range sources.Values {
		sources.Values[i] = 1
	}
	return []write{
		put(mapSourceRanges, sources),
		put(mapFrontends, c.Frontends),
		drop(mapFrontends, c.DropFrontends),
		drop(mapSourceRanges, c.DropSourceRanges),
	}
}

// batchSize bounds the entries of one call of the kernel.
const batchSize = 4096

func put[K, V any](name string, b service.Batch[K, V]) write {
	return write{name, "write", len(b.Keys), func(m *ebpf.Map) (int, error) {
		for done := 0; done < len(b.Keys); {
			end := min(len(b.Keys), done+batchSize)
			n, err := m.BatchUpdate(b.Keys[done:end], b.Values[done:end], nil)
			if done += n; err != nil {
				return done, err
			}
		}
		return len(b.Keys), nil
	}}
}

// Delete deletes entries of a map of the table. A missing entry is not an error.
func Delete[K any](t *Table, name string, keys []K) error {
	if len(keys) == 0 {
		return nil
	}
	if _, err := drop(name, keys).do(t.maps[name]); err != nil {
		return fmt.Errorf("delete from %s: %w", name, err)
	}
	return nil
}

// drop deletes entries. A missing entry is not an error.
func drop[K any](name string, keys []K) write {
	return write{name, "delete from", len(keys), func(m *ebpf.Map) (int, error) {
		for done := 0; ; {
			n, err := m.BatchDelete(keys[done:min(len(keys), done+batchSize)], nil)
			done += n
			if errors.Is(err, ebpf.ErrKeyNotExist) {
				done, err = done+1, nil
			}
			if err != nil || done == len(keys) {
				return done, err
			}
		}
	}}
}
