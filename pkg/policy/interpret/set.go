package interpret

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/google/nftables"
)

// set is a set of the table with its elements.
type set struct {
	*nftables.Set
	// keys are the elements of a set of single keys, all of one length.
	keys map[string]bool
	size int
	// ranges are the elements of a set of intervals.
	ranges []nftables.SetElement
}

// setOf reads a set when a packet first needs it.
func (k *Kernel) setOf(name string) (*set, error) {
	s := k.sets[name]
	if s == nil {
		return nil, fmt.Errorf("set %s does not exist", name)
	}
	if s.keys != nil {
		return s, nil
	}
	elements, err := k.conn.GetSetElements(s.Set)
	if err != nil {
		return nil, fmt.Errorf("list elements of %s: %w", name, err)
	}
	s.keys = make(map[string]bool, len(elements))
	if s.Interval {
		s.ranges = elements
		return s, nil
	}
	for _, e := range elements {
		s.keys[string(e.Key)] = true
		s.size = len(e.Key)
	}
	return s, nil
}

// has reports whether the set has the key that begins data.
func (s *set) has(data []byte) bool {
	switch {
	case s.Interval && s.Concatenation:
		return slices.ContainsFunc(s.ranges, func(e nftables.SetElement) bool { return inBox(e, data) })
	case s.Interval:
		return inInterval(s.ranges, data)
	}
	return s.size > 0 && s.size <= len(data) && s.keys[string(data[:s.size])]
}

// inBox reports whether the key in data lies in a box: each of its fields is between the same field
// of the two corners. A box is address . protocol . port: the last two fields have 4 bytes each.
func inBox(box nftables.SetElement, data []byte) bool {
	first, last, size := box.Key, box.KeyEnd, len(box.Key)
	if size < 12 || len(last) != size || size > len(data) {
		return false
	}
	for from, to := 0, size-8; from < size; from, to = to, to+4 {
		at := data[from:to]
		if bytes.Compare(at, first[from:to]) < 0 || bytes.Compare(at, last[from:to]) > 0 {
			return false
		}
	}
	return true
}

// inInterval reports whether the last boundary that is not above the key in data is a start.
func inInterval(boundaries []nftables.SetElement, data []byte) bool {
	var last []byte
	start := false
	for _, b := range boundaries {
		if len(b.Key) > len(data) || bytes.Compare(b.Key, data[:len(b.Key)]) > 0 {
			continue
		}
		if c := bytes.Compare(b.Key, last); last == nil || c > 0 || c == 0 && !b.IntervalEnd {
			last, start = b.Key, !b.IntervalEnd
		}
	}
	return start
}
