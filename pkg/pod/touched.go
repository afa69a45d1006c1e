package pod

import (
	"os"
	"time"
)

// Touched holds the times at which files were last made, replaced or removed in the directories of
// records and of reservations. A time is zero if it cannot prove that nothing changes later with
// the same time.
type Touched struct{ records, reservations time.Time }

// SameRecords reports whether no record changed between t and other.
func (t Touched) SameRecords(other Touched) bool {
	return !t.records.IsZero() && t.records.Equal(other.records)
}

// Same reports whether no record and no reservation changed between t and other.
func (t Touched) Same(other Touched) bool {
	return t.SameRecords(other) && !t.reservations.IsZero() &&
		t.reservations.Equal(other.reservations)
}

// settled is the age that a last change must have to count. A more recent time proves nothing,
// because another change within one step of the file system's clock, at most 10 ms, would have the
// same time.
const settled = time.Second

// Touched returns the modification times of the directories. A time that is less than settled ago,
// or that cannot be read, is zero.
func (p Paths) Touched() (t Touched) {
	now := time.Now()
	for dir, at := range map[string]*time.Time{p.PodDir: &t.records, p.PolicyDir: &t.reservations} {
		if s, err := os.Stat(dir); err == nil && now.Sub(s.ModTime()) >= settled {
			*at = s.ModTime()
		}
	}
	return t
}
