package bpfmaps

import (
	"fmt"

	"github.com/kubeveil/kubeveil/bpf"
)

// Counter is a counter of the programs with its count since the map of counters was created. The
// map is only created again if its layout changes.
type Counter struct {
	bpf.ServiceCount
	Count uint64
}

// Counters returns what the programs counted, in the order of bpf.ServiceCounts.
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

// Remembered counts the entries of the LRU maps. It walks all of them, about a millisecond for each
// ten thousand, so once a minute is enough for a metric.
func (t *Table) Remembered() (Memory, error) {
	var m Memory
	for name, n := range map[string]*uint32{mapAffinity: &m.Clients, mapReplies: &m.Replies,
		mapSends: &m.Sends, MapFlows: &m.Flows} {
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
