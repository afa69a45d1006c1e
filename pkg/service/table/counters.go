package table

import "fmt"

// Counters are since the maps were made.
type Counters struct {
	// Translated is how often a socket was told a backend.
	Translated uint64
	// Refused is how often there was none.
	Refused uint64
	// Unsteady is how often a choice was given up and refused because the
	// service changed each time it was looked at. It should be 0.
	Unsteady uint64
}

// Counters reads what the programs counted.
func (t *Table) Counters() (Counters, error) {
	var c Counters
	for i, sum := range map[uint32]*uint64{1: &c.Translated, 2: &c.Refused, 3: &c.Unsteady} {
		var perCPU []uint64
		if err := t.maps[mapCounts].Lookup(i, &perCPU); err != nil {
			return Counters{}, fmt.Errorf("read counter %d of %s: %w", i, mapCounts, err)
		}
		for _, n := range perCPU {
			*sum += n
		}
	}
	return c, nil
}
