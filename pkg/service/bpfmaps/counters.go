package bpfmaps

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/bpf"
)

// Counter is a counter of the programs with its count since the map of counters was created. The
// map is only created again if its layout changes.
type Counter struct {
	bpf.ServiceCount
	Count uint64
}

// Counters returns the counters of the programs, in the order of bpf.ServiceCounts.
func (t *Table) Counters() ([]Counter, error) {
	counters := make([]Counter, 0, len(bpf.ServiceCounts))
	for i, what := range bpf.ServiceCounts {
		var perCPU []uint64
		if err := t.maps[mapCounts].Lookup(uint32(i), &perCPU); err != nil {
			return nil, fmt.Errorf("read counter %d of %s: %w", i, mapCounts, err)
		}
		c := Counter{ServiceCount: what}
		for _, n := range perCPU {
			c.Count += n
		}
		counters = append(counters, c)
	}
	return counters, nil
}

// DropReasons returns the names of refusals, sorted.
func DropReasons() []string { return slices.Sorted(maps.Keys(refusals(nil))) }

// Drops returns how often programs refused a packet or a socket, by the names of DropReasons.
func (t *Table) Drops() (map[string]uint64, error) {
	counters, err := t.Counters()
	return refusals(counters), err
}

// refusals returns the counts of refusals by name. It has all names, with 0 for a counter that is
// not in counters.
func refusals(counters []Counter) map[string]uint64 {
	drops := map[string]uint64{}
	for _, c := range bpf.ServiceCounts {
		if c.Reason() != "" {
			drops[c.Reason()] = 0
		}
	}
	for _, c := range counters {
		if c.Reason() != "" {
			drops[c.Reason()] += c.Count
		}
	}
	return drops
}

// rememberedRest is how long a count of Remembered stays valid. A count walks all LRU maps, which
// takes about 1 ms per 10,000 entries.
const rememberedRest = time.Minute

// Remembered returns how many entries the LRU maps have, counted at most rememberedRest ago. Maps
// of a table without links count as empty.
func (t *Table) Remembered() (Memory, error) {
	t.remembered.Lock()
	defer t.remembered.Unlock()
	if at := t.remembered.at; !at.IsZero() && time.Since(at) < rememberedRest {
		return t.remembered.used, nil
	}
	m, err := t.countMemory()
	if err == nil {
		t.remembered.at, t.remembered.used = time.Now(), m
	}
	return m, err
}

func (t *Table) countMemory() (Memory, error) {
	var m Memory
	for name, n := range m.byMap() {
		if t.maps[name] == nil {
			continue
		}
		err := eachRaw(t.maps[name], func(_, _ []byte) error {
			*n++
			return nil
		})
		if err != nil {
			return Memory{}, fmt.Errorf("count %s: %w", name, err)
		}
	}
	return m, nil
}
