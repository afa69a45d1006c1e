package pod

import (
	"os"
	"time"
)

// Touched holds the times at which files were last made, replaced or removed in the folders of
// records and of reservations. A time is zero if a later change may go unseen.
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

// settled is how long ago the last change has to be: a later one within one step of the file
// system's clock, at most 10 ms, would leave the same time.
const settled = time.Second

// Touched returns when files were last touched. A time of less than a second ago, and one that
// cannot be read, is zero.
func (p Paths) Touched() (t Touched) {
	now := time.Now()
	for dir, at := range map[string]*time.Time{p.PodDir: &t.records, p.PolicyDir: &t.reservations} {
		if s, err := os.Stat(dir); err == nil && now.Sub(s.ModTime()) >= settled {
			*at = s.ModTime()
		}
	}
	return t
}
